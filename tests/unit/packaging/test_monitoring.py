"""Page, alert rules and dashboard agree with the metrics, by Prometheus' own tool and Grafana's own types."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from slurmsched.daemon.metric_definitions import METRICS, Metric, MetricKind, metrics_by_group
from slurmsched.daemon.metrics_exposition import text_of
from slurmsched.installation import template_values
from slurmsched.template_files import render
from tests.unit.daemon.test_metrics import of_round
from tests.unit.daemon.world import World

CHECKOUT = Path(__file__).parents[3]
OF_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Series of prometheus_client itself."""


def dashboard() -> dict[str, Any]:
    return dict(json.loads(render("grafana.json", **template_values())))


def queries() -> Iterator[tuple[str, str]]:
    """The title of each panel and one of its queries."""
    for panel in dashboard()["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


def alerts() -> str:
    return render("alerts.yml", **template_values())


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        if "CI" in os.environ:
            pytest.fail("promtool is missing, which 'make setup' installs with prometheus")
        pytest.skip("NO PROMTOOL HERE: alert rules are not tested; 'make setup' as root installs prometheus")
    return found


def test_the_page_is_what_the_definitions_say() -> None:
    page = (CHECKOUT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == render("metrics.md", **template_values(), groups=metrics_by_group())
    rows = dict(re.findall(r"(?m)^\| `(synsched_\w+)` \| (\w+) \|", page))
    assert rows == {metric.series_name: metric.kind.value for metric in METRICS}


def test_every_metric_has_a_name_of_its_own_as_prometheus_wants_it() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"synsched_[a-z_]+", metric.name)
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert metric.doc.endswith(".")
        assert all(re.fullmatch(r"[a-z]+", name) and says for name, says in metric.labels)


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """The series that a query names, with what stands in braces behind each."""
    yield from re.findall(r"\b((?:synsched|process)_\w+)(?:\{([^}]*)\})?", expression)


def defined(series: str) -> Metric | None:
    """The metric that a series belongs to; None if there is none."""
    by_name = {metric.series_name: metric for metric in METRICS}
    by_name |= {
        f"{metric.name}_{part}": metric
        for metric in METRICS
        if metric.kind is MetricKind.HISTOGRAM
        for part in ("bucket", "sum", "count")
    }
    return by_name.get(series)


def expressions() -> list[str]:
    rules = re.sub(r"\n {10,}", " ", alerts())
    return [*(query for _, query in queries()), *re.findall(r"(?m)^ +expr: (?:>- )?(.*)$", rules)]


def test_every_query_asks_for_metrics_and_labels_that_there_are() -> None:
    found = [selector for expression in expressions() for selector in selectors(expression)]
    assert len(found) > 50
    for series, braces in found:
        metric = defined(series)
        assert metric is not None or series in OF_PROCESS, series
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces)) - {"instance", "job"}
        assert labels <= set(metric.label_names if metric else ()), (series, braces)


def test_the_dashboard_shows_every_metric_but_settings_and_what_is_only_for_alerts() -> None:
    shown = {metric for _, query in queries() for series, _ in selectors(query) if (metric := defined(series))}
    left = {metric.name for metric in METRICS if metric not in shown}
    assert left == {
        "synsched_last_round_timestamp_seconds", "synsched_round_period_seconds", "synsched_share_users",
        "synsched_heartbeat_stale_after_seconds", "synsched_policy_info", "synsched_start_range_factor",
        "synsched_length_forecasts", "synsched_length_forecasts_in_range",
    }  # fmt: skip


def test_the_dashboard_is_of_grafanas_own_types() -> None:
    """What these types do not know is lost on the way through them."""
    register_default_plugins()
    given = dashboard()
    back = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
    assert list(_lost(given, back)) == []
    assert len(given["panels"]) > 20


def _lost(given: Any, back: Any, where: str = "") -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(back, dict) or key not in back:
                yield f"{where}.{key}"
            else:
                yield from _lost(value, back[key], f"{where}.{key}")
    elif isinstance(given, list):
        if not isinstance(back, list) or len(given) != len(back):
            yield where
        else:
            for index, (one, other) in enumerate(zip(given, back, strict=True)):
                yield from _lost(one, other, f"{where}[{index}]")
    elif given != back:
        yield where


def test_panels_lie_side_by_side_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= 24 - at["w"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_promtool_has_nothing_against_the_metrics(promtool: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    for hint in ("", "ckpt=usr1", "ckpt=usr1"):
        world.submit(8, hint)
    text = text_of(of_round(world).series())
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_promtool_finds_the_alert_rules_in_order(promtool: str, tmp_path: Path) -> None:
    rules = tmp_path / "alerts.yml"
    rules.write_text(alerts(), encoding="utf-8")
    checked = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {alerts().count('- alert:')} rules found" in checked.stdout


STALE = 'synsched_heartbeat_stale_after_seconds{instance="c"}'
BEAT = 'synsched_heartbeat_timestamp_seconds{instance="c"}'
PERIOD = 'synsched_round_period_seconds{instance="c"}'
FINE = {BEAT: "0+60xALL", STALE: "900xALL", PERIOD: "300xALL", 'synsched_round_failures{instance="c"}': "0xALL"}
"""A daemon that does well: a heartbeat a minute, by the minutes of the test, to its end."""
DECIDED = 'synsched_round_stage_seconds_bucket{instance="c",kind="full",stage="decide",le="%s"}'
HELD = f"{6000 - 7 * 86400}xALL"
"""The submission of a job: a week before minute 100."""
RELEASED = 'synsched_job_events_total{instance="c",event="released"}'
REFUSED = 'synsched_starts_refused_total{instance="c"}'
TOLD, RIGHT = (f'synsched_start_forecasts{part}_total{{instance="c"}}' for part in ("", "_in_range"))


@pytest.mark.parametrize(
    ("series", "minute", "firing"),
    [
        pytest.param({}, 300, set(), id="all is well"),
        pytest.param({BEAT: "0+60x100 6000x200"}, 110, set(), id="silent for ten minutes, which is not stale"),
        pytest.param({BEAT: "0+60x100 6000x400"}, 118, {"SynschedSilent"}, id="silent until it is stale"),
        pytest.param(
            {BEAT: "0+60x100 6000x400", 'synsched_jobs_held{instance="c"}': "3x500"},
            150,
            {"SynschedSilent", "SynschedHoldsJobsInSilence"},
            id="silent, and jobs are held all the same",
        ),
        pytest.param({BEAT: "", STALE: "", PERIOD: ""}, 20, {"SynschedAbsent"}, id="no metrics at all"),
        pytest.param(
            {'synsched_round_failures{instance="c"}': "0x10 3x300"}, 20, {"SynschedRoundsFailing"}, id="three failures"
        ),
        pytest.param(
            {'synsched_last_round_timestamp_seconds{instance="c",outcome="ok"}': "0+60x30 1800x300"},
            47,
            {"SynschedRoundsFailing"},
            id="no round is ok for three periods",
        ),
        pytest.param(
            {DECIDED % "10": "0+1x500", DECIDED % "30": "0+1x500", DECIDED % "+Inf": "0+1x500"},
            200,
            set(),
            id="decisions of seconds",
        ),
        pytest.param(
            {DECIDED % "30": "0x500", DECIDED % "60": "0+1x500", DECIDED % "+Inf": "0+1x500"},
            200,
            {"SynschedDecisionsSlow"},
            id="decisions of a minute, every five",
        ),
        pytest.param(
            {'synsched_oldest_hold_timestamp_seconds{instance="c"}': HELD},
            100,
            set(),
            id="a job held for six days and more",
        ),
        pytest.param(
            {'synsched_oldest_hold_timestamp_seconds{instance="c"}': HELD},
            115,
            {"SynschedJobsHeldLong"},
            id="a job held for a week",
        ),
        pytest.param({REFUSED: "0+1x300", RELEASED: "0+2x300"}, 100, {"SynschedStartsRefused"}, id="half are refused"),
        pytest.param({REFUSED: "0+1x300", RELEASED: "0+20x300"}, 100, set(), id="a twentieth is refused"),
        pytest.param({REFUSED: "0+1x5 5x300", RELEASED: "0+1x5 5x300"}, 30, set(), id="five are refused"),
        pytest.param(
            {'synsched_jobs_set_aside{instance="c",reason="unreadable"}': "1x300"},
            70,
            {"SynschedJobsSetAside"},
            id="a job set aside for an hour",
        ),
        pytest.param({TOLD: "0+2xALL", RIGHT: "0+1xALL"}, 500, {"SynschedForecastsOff"}, id="half came true"),
        pytest.param({TOLD: "0+10xALL", RIGHT: "0+8xALL"}, 500, set(), id="as many came true as should"),
        pytest.param({TOLD: "0+1x50 50xALL", RIGHT: "0xALL"}, 500, set(), id="too few to tell"),
        pytest.param(
            {'synsched_operations_blocked_total{instance="c",cause="no_permission"}': "0+1x300"},
            30,
            {"SynschedMayNot"},
            id="a right is missing",
        ),
        pytest.param(
            {'synsched_operations_blocked_total{instance="c",cause="mode"}': "0+1x300"}, 30, set(), id="the mode blocks"
        ),
        pytest.param(
            {'synsched_changes_stopped{instance="c",cause="paused"}': "1x3000"},
            1450,
            {"SynschedChangesStopped"},
            id="paused for a day",
        ),
    ],
)
def test_alerts(
    series: Mapping[str, str], minute: int, firing: set[str], fires: Callable[[Mapping[str, str], int], set[str]]
) -> None:
    assert fires({**FINE, **series}, minute) == firing


@pytest.fixture
def fires(promtool: str, tmp_path: Path) -> Callable[[Mapping[str, str], int], set[str]]:
    """Which alerts fire at a minute of such series, by promtool: it evaluates the rules as Prometheus does, and its
    complaint about a test that expects every alert once too often has those that fire."""
    (tmp_path / "alerts.yml").write_text(alerts(), encoding="utf-8")
    names = re.findall(r"- alert: (\w+)", alerts())

    def run(series: Mapping[str, str], minute: int) -> set[str]:
        whole = {name: values.replace("xALL", f"x{minute}") for name, values in series.items() if values}
        inputs = [{"series": name, "values": values} for name, values in whole.items()]
        expected = [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [{"exp_labels": {"is": "none"}}]}
            for name in names
        ]
        test = {
            "rule_files": ["alerts.yml"],
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": expected}],
        }
        (tmp_path / "test.yml").write_text(json.dumps(test), encoding="utf-8")  # JSON is YAML
        argv = [promtool, "test", "rules", str(tmp_path / "test.yml")]
        said = subprocess.run(argv, capture_output=True, text=True, check=False)
        parts = re.split(r"alertname: ?(\w+)", said.stdout + said.stderr)
        assert set(parts[1::2]) == set(names), said.stdout + said.stderr
        return {name for name, part in zip(parts[1::2], parts[2::2], strict=True) if _got(part)}

    return run


def _got(part: str) -> bool:
    """Whether an alert was there at all."""
    return "Labels:{alertname" in part.partition("got:")[2].replace(" ", "")
