"""Reports of a simulation and of a policy comparison: metrics averaged over seeds, plots, tables for the terminal and
an HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.comparison.sweep import CellResult, FailedCell, Sweep
from slurmsched.model import SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, fixed, percent, significant
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.simulation import RunMetrics, run_metrics
from slurmsched.simulation.results import finish_time_fairness, jct_cdf
from slurmsched.template_files import render
from slurmsched.traces.formats.registry import TRACE_FORMATS
from slurmsched.traces.formats.sacct import SACCT_FIELDS
from slurmsched.traces.trace import ImportedTrace, Trace, TraceSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Metrics of one policy at one load (jobs per hour), averaged over seeds; times in seconds.

    `ratio` is the mean JCT divided by that of the first policy at the same load. `finished` and `jobs` are sums.
    """

    policy: str
    load: float | None
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    gpu_utilization: float
    ftf_max: float
    migrations: float
    restarts: float
    finished: int
    jobs: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows` are ordered by load, then as the policies were given; `cells` are the metrics of each run; `lost` names
    the cells without a result and why."""

    rows: tuple[ComparisonRow, ...]
    cells: tuple[RunMetrics, ...]
    lost: tuple[str, ...] = ()
    loads: tuple[float, ...] = ()
    policies: tuple[str, ...] = field(default=())

    @property
    def headline(self) -> str:
        """One sentence: the policy with the shortest mean JCT against the first policy, at the highest load."""
        if not self.rows:
            return "No simulation finished."
        top = [row for row in self.rows if row.load == (self.loads[-1] if self.loads else None)]
        first, best = top[0], min(top, key=lambda row: row.avg_jct_s)
        at = f" at {significant(best.load)} jobs an hour" if best.load is not None else ""
        if best is first or isnan(best.ratio) or best.ratio >= 1:
            return f"No policy has a shorter mean job completion time than {first.policy}{at}."
        saved = 100 * (1 - best.ratio)
        shorter = f"{min(round(saved), 99)} %" if saved >= 1 else "less than 1 %"
        return f"Mean job completion time under {best.policy} is {shorter} shorter than under {first.policy}{at}."


def compare_results(results: Sequence[CellResult | FailedCell]) -> Comparison:
    """The metrics of a sweep, averaged over seeds."""
    finished = [result for result in results if isinstance(result, CellResult)]
    groups: dict[tuple[float | None, str], list[RunMetrics]] = {}
    for result in finished:
        groups.setdefault((result.cell.load, result.cell.policy.name), []).append(run_metrics(result.run))
    baselines: dict[float | None, float] = {}
    rows: list[ComparisonRow] = []
    for (load, policy), cells in groups.items():
        mean = _mean([cell.avg_jct_s for cell in cells])
        rows.append(_comparison_row(policy, load, cells, mean / baselines.setdefault(load, mean)))
    return Comparison(
        rows=tuple(rows),
        cells=tuple(cell for cells in groups.values() for cell in cells),
        lost=tuple(f"{failed.cell.name}: {failed.reason}" for failed in results if isinstance(failed, FailedCell)),
        loads=tuple(sorted({load for load, _ in groups if load is not None})),
        policies=tuple(dict.fromkeys(policy for _, policy in groups)),
    )


def _comparison_row(policy: str, load: float | None, cells: Sequence[RunMetrics], ratio: float) -> ComparisonRow:
    def mean(name: str) -> float:
        return _mean([float(getattr(cell, name)) for cell in cells])

    return ComparisonRow(
        policy=policy,
        load=load,
        avg_jct_s=mean("avg_jct_s"),
        median_jct_s=mean("median_jct_s"),
        p99_jct_s=mean("p99_jct_s"),
        makespan_s=mean("makespan_s"),
        gpu_utilization=mean("gpu_utilization"),
        ftf_max=mean("ftf_max"),
        migrations=mean("migrations"),
        restarts=mean("restarts"),
        finished=sum(cell.finished for cell in cells),
        jobs=sum(cell.jobs for cell in cells),
        ratio=ratio,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def even_share_ratios(results: Sequence[CellResult]) -> Mapping[str, Mapping[str, float]]:
    """By policy and user: the user's GPU time divided by an even share among the users."""
    ratios: dict[str, dict[str, float]] = {}
    for result in results:
        gpu_time: dict[str, float] = {}
        for job in result.run.measured_jobs:
            gpu_time[job.user or "user"] = gpu_time.get(job.user or "user", 0.0) + job.service
        even = sum(gpu_time.values()) / max(len(gpu_time), 1)
        ratios.setdefault(
            result.cell.policy.name, {user: seconds / even if even else 0.0 for user, seconds in gpu_time.items()}
        )
    return ratios


HOUR: Final = 3600.0
MAX_USERS: Final = 12

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""The palette of Okabe and Ito, distinguishable with any kind of colour vision."""


class PlotsUnavailableError(SynschedError):
    """matplotlib is not installed."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot as SVG; `caption` also serves as its text alternative."""

    title: str
    caption: str
    svg: str


def draw_plots(results: Sequence[CellResult], comparison: Comparison) -> tuple[Plot, ...]:
    """Every plot that the results have data for. Raises PlotsUnavailableError."""
    colour = {policy: _COLOURS[index % len(_COLOURS)] for index, policy in enumerate(comparison.policies)}
    top = max(comparison.loads, default=None)
    shown: dict[str, CellResult] = {}
    for result in results:
        if result.cell.load == top:
            shown.setdefault(result.cell.policy.name, result)
    at = "" if top is None else f" at {significant(top)} jobs an hour"
    drawn = [
        draw_plot(
            "Job completion times",
            f"Fraction of jobs that completed within a time{at}; further left is better.",
            lambda axes: _draw_completion(axes, shown, colour),
        ),
        draw_plot(
            "GPUs in use",
            f"GPUs allocated to jobs over time{at}.",
            lambda axes: _draw_usage(axes, shown, colour, "gpus"),
        ),
        draw_plot(
            "CPUs in use",
            f"CPUs allocated to jobs over time{at}.",
            lambda axes: _draw_usage(axes, shown, colour, "cpus"),
        ),
        draw_plot(
            "Finish-time fairness",
            f"Fraction of jobs within a slowdown against an even share of the cluster{at}; further left is better.",
            lambda axes: _draw_fairness(axes, shown, colour),
        ),
    ]
    if len(comparison.loads) > 1:
        drawn.insert(
            1,
            draw_plot(
                "Load",
                "Mean job completion time by jobs per hour; lower is better.",
                lambda axes: _draw_load(axes, comparison, colour),
            ),
        )
    shares = even_share_ratios(list(shown.values()))
    if any(len(users) > 1 for users in shares.values()):
        drawn.append(
            draw_plot(
                "Shares of users",
                f"GPU time of each user against an even share{at}; 1 is even.",
                lambda axes: _draw_user_shares(axes, shares, colour),
            )
        )
    return tuple(drawn)


def draw_plot(title: str, caption: str, draw: Callable[[Axes], None]) -> Plot:
    """Returns what `draw` draws, of a title that no other plot of the page has. Raises PlotsUnavailableError."""
    with _figure() as (figure, axes):
        draw(axes)
        axes.grid(visible=True, alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids are unique per plot on the page; black becomes the page's text colour, so that dark mode is readable.
    prefix = re.sub(r"\W", "", title)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg).replace("#000000", "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return Plot(title, f"{caption} Simulated.", svg)


@contextmanager
def _figure() -> Iterator[tuple[Any, Axes]]:
    try:
        from matplotlib import rc_context  # noqa: PLC0415  # an extra that most commands do without
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise PlotsUnavailableError("the report needs matplotlib: pip install 'slurmsched[plots]'") from error
    with rc_context({"svg.hashsalt": "synsched", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        yield figure, figure.subplots()


def _draw_completion(axes: Axes, shown: dict[str, CellResult], colour: dict[str, str]) -> None:
    for policy, result in shown.items():
        times, fractions = jct_cdf(result.run)
        axes.step(times / HOUR, fractions, where="post", label=policy, color=colour[policy])
    axes.set(xscale="log", xlabel="hours", ylabel="fraction of jobs", ylim=(0, 1))


def _draw_fairness(axes: Axes, shown: dict[str, CellResult], colour: dict[str, str]) -> None:
    for policy, result in shown.items():
        rho = np.sort(finish_time_fairness(result.run))
        axes.step(rho, np.arange(1, len(rho) + 1) / max(len(rho), 1), where="post", label=policy, color=colour[policy])
    axes.axvline(1, color="gray", linewidth=1)
    axes.set(xlabel="slowdown against an even share", ylabel="fraction of jobs", ylim=(0, 1))


def _draw_usage(axes: Axes, shown: dict[str, CellResult], colour: dict[str, str], resource: str) -> None:
    for policy, result in shown.items():
        times = [sample.time / HOUR for sample in result.run.samples]
        axes.step(
            times,
            [getattr(sample, resource) for sample in result.run.samples],
            where="post",
            label=policy,
            color=colour[policy],
            linewidth=1,
        )
    total = max((getattr(result.run, f"total_{resource}") for result in shown.values()), default=0.0)
    axes.axhline(total, color="gray", linewidth=1)
    axes.set(xlabel="hours", ylabel=resource.upper()[:-1] + "s", ylim=(0, None))


def _draw_load(axes: Axes, comparison: Comparison, colour: dict[str, str]) -> None:
    for policy in comparison.policies:
        points = sorted(
            (row.load, row.avg_jct_s / HOUR) for row in comparison.rows if row.policy == policy and row.load
        )
        axes.plot(
            [load for load, _ in points], [jct for _, jct in points], marker="o", label=policy, color=colour[policy]
        )
    axes.set(xlabel="jobs per hour", ylabel="mean JCT, hours", ylim=(0, None))


def _draw_user_shares(axes: Axes, by_policy: Mapping[str, Mapping[str, float]], colour: dict[str, str]) -> None:
    users = sorted({user for ratios in by_policy.values() for user in ratios})[:MAX_USERS]
    width = 0.8 / max(len(by_policy), 1)
    for index, (policy, ratios) in enumerate(by_policy.items()):
        left = np.arange(len(users)) + width * (index - (len(by_policy) - 1) / 2)
        axes.bar(left, [ratios.get(user, 0.0) for user in users], width, label=policy, color=colour[policy])
    axes.axhline(1, color="gray", linewidth=1)
    axes.set_xticks(range(len(users)), [user[:12] for user in users], rotation=30, ha="right")
    axes.set(ylabel="GPU time / even share")


_HEADINGS = ("POLICY", "LOAD", "MEAN", "MEDIAN", "P99", "MAKESPAN", "USEFUL", "FTF", "MOVES", "RATIO")


def comparison_view(comparison: Comparison) -> RenderableType:
    """One line per policy and load, the headline, and the cells without a result."""
    shown = [index for index, heading in enumerate(_HEADINGS) if heading != "LOAD" or comparison.loads]
    columns = [Column(_HEADINGS[index], right=index > 0) for index in shown]
    rows = [[_cells(row)[index] for index in shown] for row in comparison.rows]
    lost = [safe_line(f"missing: {line}") for line in comparison.lost]
    return Group(Listing(columns, rows), Text(), safe_line(f"{comparison.headline} (simulated)"), *lost)


def comparison_page(sweep: Sweep, results: Sequence[CellResult | FailedCell], comparison: Comparison) -> str:
    """One self-contained HTML file. Raises PlotsUnavailableError."""
    best = {load: min(_mean_times(comparison, load)) for load in {row.load for row in comparison.rows}}
    finished = [result for result in results if isinstance(result, CellResult)]
    options = sweep.cells[0].options if sweep.cells else None
    early = f" and {duration(options.early)} after what happens" if options and options.early else ""
    return render(
        "comparison.html",
        title=comparison.headline,
        headline=comparison.headline,
        headings=_HEADINGS,
        rows=[{"cells": _cells(row), "best": row.avg_jct_s == best[row.load]} for row in comparison.rows],
        lost=comparison.lost,
        plots=draw_plots(finished, comparison) if finished else (),
        cluster=sweep.cluster,
        works=list(dict.fromkeys(map(_work_text, sweep.traces))),
        terms=(
            f"Rounds every {duration(options.period)}{early}; a restart costs {duration(options.overhead)}. JCT is from"
            " arrival to end; USEFUL is the fraction of all GPU time whose work was kept; FTF is the worst slowdown"
            " against an even share of the cluster; RATIO is the mean JCT divided by that of the first policy."
            if options
            else ""
        ),
        command=sweep.command,
    )


def _work_text(trace: Trace) -> str:
    return f"{trace.name}, {pluralise(len(trace.jobs), 'job')} ({trace.source})"


def _mean_times(comparison: Comparison, load: float | None) -> list[float]:
    return [row.avg_jct_s for row in comparison.rows if row.load == load]


def _cells(row: ComparisonRow) -> list[str]:
    return [
        row.policy,
        "-" if row.load is None else f"{significant(row.load)}/h",
        duration_or_dash(row.avg_jct_s),
        duration_or_dash(row.median_jct_s),
        duration_or_dash(row.p99_jct_s),
        duration_or_dash(row.makespan_s),
        percent(row.gpu_utilization),
        fixed(row.ftf_max, 2),
        fixed(row.migrations, 0),
        fixed(row.ratio, 2),
    ]


def duration_or_dash(seconds: float) -> str:
    """A duration of `seconds`; `-` for NaN."""
    return "-" if isnan(seconds) else duration(seconds)


def figures_view(figures: RunMetrics) -> RenderableType:
    """The metrics of a simulation, one line each."""
    others = ", ".join(f"{count} {state.lower()}" for state, count in figures.states.items() if state != "COMPLETED")
    rows = [
        ("jobs", f"{figures.finished} of {figures.jobs} completed" + (f", {others}" if others else "")),
        ("mean JCT", duration_or_dash(figures.avg_jct_s)),
        ("median JCT", duration_or_dash(figures.median_jct_s)),
        ("p99 JCT", duration_or_dash(figures.p99_jct_s)),
        ("mean wait", duration_or_dash(figures.avg_wait_s)),
        ("makespan", duration_or_dash(figures.makespan_s)),
        ("useful GPU time", percent(figures.gpu_utilization)),
        ("CPU time allocated", percent(figures.cpu_utilization)),
        ("finish-time fairness", f"{fixed(figures.ftf_mean, 2)} mean, {fixed(figures.ftf_max, 2)} worst"),
        ("restarts", f"{figures.restarts}, of which {figures.migrations} on other nodes"),
        ("rounds", f"{figures.rounds}, {duration_or_dash(figures.decision_s_median)} each"),
    ]
    name = figures.policy + (f"/{figures.order}" if figures.order else "")
    head = f"{name} over {figures.trace} (simulated, in {duration(figures.wall_s)}):"
    return Group(safe_line(head), Text(), Listing((Column(""), Column("")), rows, headings=False), _window(figures))


def _window(figures: RunMetrics) -> RenderableType:
    return Text(f"\nMetrics over {pluralise(figures.jobs, 'job')}.") if figures.finished < figures.jobs else Text()


_HOUR = 3600.0


def trace_view(summary: TraceSummary) -> RenderableType:
    """The summary of a trace, one line per property."""
    rows = [
        ("jobs", f"{summary.jobs} in {duration(summary.span_h * _HOUR)}"),
        ("GPU-hours", fixed(summary.gpu_hours)),
        ("arriving work", f"keeps {fixed(summary.busy_gpus)} GPUs busy" if summary.span_h else "all at once"),
        ("durations", ", ".join(f"{name} {duration(hours * _HOUR)}" for name, hours in summary.duration_h.items())),
        *(
            (name, counts)
            for name, counts in (
                ("GPUs per job", _listed(summary.widths)),
                ("models", _listed(summary.models)),
                ("users", _listed(summary.users)),
                ("GPU types", _listed(summary.types)),
                ("copies of a job", _listed(summary.copies)),
            )
            if counts
        ),
    ]
    listing = Listing((Column(""), Column("")), rows, headings=False, wrapped=True)
    return Group(safe_line(f"{summary.name} ({summary.source})"), Text(), listing)


def skipped_lines(imported: ImportedTrace) -> list[str]:
    """One line per reason why jobs were left out."""
    return [f"left out: {pluralise(count, 'job')} ({why})" for why, count in imported.skipped.items()]


def formats_view() -> RenderableType:
    """The trace formats that can be read, and how to export a Slurm cluster's last month."""
    rows = [(name, trace_format.summary) for name, trace_format in TRACE_FORMATS.items()]
    command = f"SLURM_TIME_FORMAT=%s sacct -aX --parsable2 -S now-30days -o {','.join(SACCT_FIELDS)}"
    return Group(Listing((Column("FORMAT"), Column("WHAT")), rows), Text(f"\nYour cluster's last month:\n{command}"))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
