"""A real Prometheus on this machine that scrapes the daemon of a mini cluster, and a picture of what it was told."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

EVERY: Final = 1
"""Seconds between two scrapes."""
WINDOW: Final = "8s"
"""What stands in queries for the rate interval that Grafana chooses by the time between scrapes."""
PICTURE: Final = "SLURMSCHED_PICTURE"
"""The file that the picture of docs/metrics.md is written to; without it the story draws it for itself."""


class RealPrometheus:
    """Prometheus' own answers."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, what: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def values(self, query: str) -> dict[str, float]:
        """The present value of each series that the query finds, by those of its labels but where it is from."""
        found = {}
        for series in self.ask("query", query=query)["result"]:
            labels = (value for name, value in sorted(series["metric"].items()) if name not in _WHERE)
            found[" ".join(labels)] = float(series["value"][1])
        return found

    def course(self, query: str, since: float) -> list[tuple[dict[str, str], list[float], list[float]]]:
        """Each series since a time: its labels, seconds, and values that are numbers."""
        parameters = {"query": query, "start": str(since), "end": str(time.time()), "step": str(EVERY)}
        series = self.ask("query_range", **parameters)["result"]
        courses = []
        for one in series:
            points = [(at - since, float(value)) for at, value in one["values"] if math.isfinite(float(value))]
            courses.append((one["metric"], [at for at, _ in points], [value for _, value in points]))
        return courses


_WHERE: Final = {"__name__", "instance", "job"}


def as_asked(expression: str) -> str:
    """A panel's query with what Grafana puts in the place of its variables."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", WINDOW)


@contextmanager
def scraping(target: str, rules: str, folder: Path) -> Iterator[RealPrometheus]:
    """Prometheus, as Debian ships it, with these rules and this target, on a port of the loopback."""
    program = shutil.which("prometheus")
    if program is None:
        if "CI" in os.environ:
            pytest.fail("prometheus is missing, which 'make setup' installs")
        pytest.skip("NO PROMETHEUS HERE: nothing scrapes the daemon; 'make setup' as root installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "alerts.yml").write_text(rules, encoding="utf-8")
    configuration = {
        "global": {"scrape_interval": f"{EVERY}s", "scrape_timeout": f"{EVERY}s", "evaluation_interval": f"{EVERY}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "synsched", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration), encoding="utf-8")  # JSON is YAML
    argv = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*argv, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process,
    ):
        try:
            yield RealPrometheus(port)
        finally:
            process.terminate()
            process.wait(timeout=30)


def draw(prometheus: RealPrometheus, dashboard: Mapping[str, Any], since: float, file: Path) -> None:
    """Draw each panel of the dashboard where it lies, from Prometheus' answers to its own queries. It is no Grafana."""
    import matplotlib as mpl  # noqa: PLC0415 - it takes a second to import, which other stories need not wait for

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415 - matplotlib brings it

    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(16, rows * 0.42), dpi=100)
    for panel in panels:
        at = panel["gridPos"]
        box = (at["x"] / 24 + 0.025, 1 - (at["y"] + at["h"] - 0.9) / rows, at["w"] / 24 - 0.04, (at["h"] - 2.3) / rows)
        if panel["type"] == "row":
            figure.text(0.01, 1 - (at["y"] + 0.75) / rows, panel["title"], weight="bold", fontsize=12)
            continue
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=9, loc="left")
        courses = [
            (_legend(target["legendFormat"], labels), seconds, values)
            for target in panel["targets"]
            for labels, seconds, values in prometheus.course(as_asked(target["expr"]), since)
            if values
        ]
        if panel["type"] == "stat":
            _draw_stat(axes, courses, named=panel["options"]["textMode"] == "name")
            continue
        stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
        _draw_courses(axes, courses, stacked=stacked)
    figure.text(0.99, 1 - 0.75 / rows, f"{_LABEL}; the axis below is in seconds", ha="right", fontsize=9)
    figure.savefig(file)
    plt.close(figure)
    with Image.open(file) as drawn:
        drawn.quantize(_COLOURS).save(file, optimize=True)


_LABEL: Final = "drawn with matplotlib from Prometheus' answers to the panels' queries, not by Grafana"
_COLOURS: Final = 48
"""Of the picture, which lies in the repository."""
_COLUMNS: Final = 3
_ROW: Final = 0.13
"""The part of a panel's height that a row of its legend takes."""


def _legend(form: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form


def _draw_stat(axes: Any, courses: list[tuple[str, list[float], list[float]]], *, named: bool) -> None:
    axes.set_axis_off()
    last = max((seconds[-1] for _, seconds, _ in courses), default=0.0)
    now = [(legend, values[-1]) for legend, seconds, values in courses if seconds[-1] >= last - 2 * EVERY]
    words = [legend if named else f"{value:.3g}" for legend, value in now]
    if not named and len(now) > 1:
        words = [f"{legend}: {value:.3g}" for legend, value in now]
    axes.text(0.0, 0.3, "\n".join(words), fontsize=9 if len(words) > 1 else 18)


def _draw_courses(axes: Any, courses: list[tuple[str, list[float], list[float]]], *, stacked: bool) -> None:
    if stacked:
        times = sorted({at for _, seconds, _ in courses for at in seconds})
        by_time = [dict(zip(seconds, values, strict=True)) for _, seconds, values in courses]
        heights = [[of.get(at, 0.0) for at in times] for of in by_time]
        axes.stackplot(times, heights, labels=[legend for legend, _, _ in courses], alpha=0.7)
    else:
        for legend, seconds, values in courses:
            axes.plot(seconds, values, label=legend, linewidth=1.2)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if courses:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + (high - low) * _ROW * -(-len(courses) // _COLUMNS))  # the legend covers no line
        axes.legend(fontsize=7, ncols=_COLUMNS, loc="upper left", framealpha=0.6)
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", fontsize=8)
