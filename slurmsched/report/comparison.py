"""Reports of a simulation and of a policy comparison: metrics averaged over seeds, plots, tables for the terminal and
an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.arrays import Floats
from slurmsched.comparison.sweep import CellResult, FailedCell, Sweep
from slurmsched.model.reasons import pluralise
from slurmsched.report.page import Axis, Curve, Plot, Unit, curves, means_over_time, render_page, steps, written_at
from slurmsched.report.quantities import duration, fixed, percent, significant
from slurmsched.report.tables import Column, Listing, printable, safe_line
from slurmsched.simulation import RunMetrics, SimulationResult, run_metrics
from slurmsched.simulation.results import finish_time_fairness, jct_cdf


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
    avg_wait_s: float
    gpu_hours: float
    """What jobs held, of which `lost_gpu_hours` for restarts and work that was not kept."""
    lost_gpu_hours: float

    @property
    def unfinished(self) -> float:
        return float(self.jobs - self.finished)


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
        """One sentence: the policy with the shortest mean JCT against the first policy at the highest load, and what
        it does to the slowest jobs."""
        if not self.rows:
            return "No simulation finished."
        top = [row for row in self.rows if row.load == (self.loads[-1] if self.loads else None)]
        first, best = top[0], min(top, key=lambda row: row.avg_jct_s)
        at = f"At {significant(best.load)} jobs an hour " if best.load is not None else ""
        took = duration(best.avg_jct_s)
        if best is first or isnan(best.ratio) or best.ratio >= 1:
            nobody = f"{at}no policy finishes a job sooner on average than {first.policy}, in {took}."
            return nobody[0].upper() + nobody[1:]
        worst, of_first = duration(best.p99_jct_s), _against(best.p99_jct_s / first.p99_jct_s)
        return (
            f"{at}{best.policy} finishes a job in {took} on average, {_against(best.ratio)} than {first.policy};"
            f" its slowest jobs (one in a hundred) take {worst} or more, {of_first}."
        )


def _against(ratio: float) -> str:
    """A ratio of times in words: `40 % sooner`, `3 % later`."""
    percents = abs(100 * (1 - ratio))
    amount = f"{min(round(percents), 99) if ratio < 1 else round(percents)} %" if percents >= 1 else "less than 1 %"
    return f"{amount} {'sooner' if ratio < 1 else 'later'}" if ratio != 1 else "as soon"


def compare_results(results: Sequence[CellResult | FailedCell]) -> Comparison:
    """The metrics of a sweep, averaged over seeds."""
    finished = [result for result in results if isinstance(result, CellResult)]
    groups: dict[tuple[float | None, str], list[RunMetrics]] = {}
    runs: dict[tuple[float | None, str], list[SimulationResult]] = {}
    for result in finished:
        groups.setdefault((result.cell.load, result.cell.policy.name), []).append(run_metrics(result.run))
        runs.setdefault((result.cell.load, result.cell.policy.name), []).append(result.run)
    baselines: dict[float | None, float] = {}
    rows: list[ComparisonRow] = []
    for (load, policy), cells in groups.items():
        mean = _mean([cell.avg_jct_s for cell in cells])
        ratio = mean / baselines.setdefault(load, mean)
        rows.append(_comparison_row(policy, load, cells, runs[load, policy], ratio))
    return Comparison(
        rows=tuple(rows),
        cells=tuple(cell for cells in groups.values() for cell in cells),
        lost=tuple(f"{failed.cell.name}: {failed.reason}" for failed in results if isinstance(failed, FailedCell)),
        loads=tuple(sorted({load for load, _ in groups if load is not None})),
        policies=tuple(dict.fromkeys(policy for _, policy in groups)),
    )


def _comparison_row(
    policy: str, load: float | None, cells: Sequence[RunMetrics], runs: Sequence[SimulationResult], ratio: float
) -> ComparisonRow:
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
        avg_wait_s=mean("avg_wait_s"),
        gpu_hours=_mean([sum(job.service for job in run.measured_jobs) / HOUR for run in runs]),
        # Where nothing was lost the sums differ by rounding, even below zero; adding 0.0 makes 0 of -0.
        lost_gpu_hours=_mean(
            [round(sum(job.service - job.useful for job in run.measured_jobs) / HOUR, 6) + 0.0 for run in runs]
        ),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def even_share_ratios(run: SimulationResult) -> Mapping[str, float]:
    """By user: the user's GPU time divided by an even share among the users."""
    gpu_time: dict[str, float] = {}
    for job in run.measured_jobs:
        gpu_time[job.user or "user"] = gpu_time.get(job.user or "user", 0.0) + job.service
    even = sum(gpu_time.values()) / max(len(gpu_time), 1)
    return {user: seconds / even if even else 0.0 for user, seconds in gpu_time.items()}


HOUR: Final = 3600.0
MAX_USERS: Final = 12
_SLOWEST: Final = 99.0
"""The percentile at which cumulative curves end: beyond it a few jobs would leave the others no room."""
_LOG_FROM: Final = 50.0
"""Spread, as the largest over the smallest value, from which on an axis is logarithmic."""


def comparison_plots(results: Sequence[CellResult], comparison: Comparison) -> tuple[Plot, ...]:
    """Every plot that the results have data for, of the first seed at the highest load."""
    top, names = max(comparison.loads, default=None), comparison.policies
    shown: dict[str, SimulationResult] = {}
    for result in results:
        if result.cell.load == top and result.run.measured_jobs:
            shown.setdefault(result.cell.policy.name, result.run)
    at = "" if top is None else f", at {top:g} jobs an hour"
    drawn = [_completion_plot(shown, names, at)]
    if len(comparison.loads) > 1:
        drawn.append(_load_plot(comparison))
    drawn += [_usage_plot(shown, names, at, measure) for measure in _USAGES]
    drawn += [_fairness_plot(shown, names, at), _shares_plot(shown, names, at)]
    return tuple(plot for plot in drawn if plot is not None and plot.curves)


def _cut(values: Mapping[str, Floats]) -> tuple[float, str]:
    """The largest of the policies' percentiles at which curves end, and whose it is."""
    ends = {name: float(np.percentile(of, _SLOWEST)) for name, of in values.items() if len(of)}
    slowest = max(ends, key=ends.__getitem__, default="")
    return ends.get(slowest, 0.0), slowest


def distribution(values: Mapping[str, Floats], names: Sequence[str], label: str, unit: Unit) -> CumulativeCurves | None:
    """The cumulative curves of these values, each of all measured jobs, up to what matters."""
    high, slowest = _cut(values)
    least = min((float(of.min()) for of in values.values() if len(of)), default=0.0)
    if high <= 0:
        return None
    low, log = (max(least, high / 1e5), True) if high > _LOG_FROM * max(least, high / 1e9) else (0.0, False)
    if low >= high:
        low, log = 0.0, False
    told = duration(high) if unit is Unit.DURATION else f"{high:.2f}"
    ended = {
        name: steps([(0.0, 0.0), *zip(of.tolist(), (np.arange(1, len(of) + 1) / len(of)).tolist(), strict=True)])
        for name, of in values.items()
        if len(of)
    }
    return CumulativeCurves(
        Axis(f"{label}, up to {told}: p99 under {slowest}", low, high, unit, log),
        Axis("part of the jobs", 0.0, 1.0, Unit.PERCENT),
        curves(ended, names),
    )


@dataclass(frozen=True, slots=True)
class CumulativeCurves:
    """Axes and curves of a cumulative distribution."""

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]


def _completion_plot(shown: Mapping[str, SimulationResult], names: Sequence[str], at: str) -> Plot | None:
    drawn = distribution({name: jct_cdf(run)[0] for name, run in shown.items()}, names, "time", Unit.DURATION)
    if drawn is None:
        return None
    caption = f"Part of the completed jobs that took at most so long, from arrival to end{at}. Higher is better."
    return Plot("Job completion times", caption, drawn.x, drawn.y, drawn.curves)


def _fairness_plot(shown: Mapping[str, SimulationResult], names: Sequence[str], at: str) -> Plot | None:
    values = {name: np.sort(finish_time_fairness(run)) for name, run in shown.items()}
    drawn = distribution(values, names, "slowdown", Unit.NUMBER)
    if drawn is None:
        return None
    caption = (
        "Part of the jobs that took at most so many times as long as with an even share of the cluster"
        f" (finish-time fairness){at}. Higher is better."
    )
    level = (1.0, "an even share") if drawn.x.low < 1.0 < drawn.x.high else None
    return Plot("Finish-time fairness", caption, drawn.x, drawn.y, drawn.curves, x_level=level)


@dataclass(frozen=True, slots=True)
class _Usage:
    """A column of the samples of a run, and the attribute of the run that it can reach."""

    title: str
    caption: str
    column: str
    total: str = ""


_USAGES: Final = (
    _Usage("Jobs waiting", "Jobs that wait, over time", "waiting"),
    _Usage("GPUs in use", "GPUs allocated to jobs, over time", "gpus", "total_gpus"),
    _Usage("CPUs in use", "CPUs allocated to jobs, over time", "cpus", "total_cpus"),
)


def _usage_plot(shown: Mapping[str, SimulationResult], names: Sequence[str], at: str, usage: _Usage) -> Plot | None:
    ends = {
        name: np.array([job.end for job in run.measured_jobs if job.end is not None] or [0.0])
        for name, run in shown.items()
    }
    until, last = _cut(ends)
    values = {
        name: means_over_time([(s.time, float(getattr(s, usage.column))) for s in run.samples if s.time < until], until)
        for name, run in shown.items()
    }
    total = max((getattr(run, usage.total) for run in shown.values()), default=0.0) if usage.total else 0.0
    most = max((value for points in values.values() for _, value in points), default=0.0)
    if until <= 0 or max(total, most) <= 0:
        return None
    return Plot(
        usage.title,
        f"{usage.caption}, as means of 120 equal times{at}.",
        Axis(f"time, until 99 % of the jobs have ended under {last}", 0.0, until, Unit.DURATION),
        Axis(usage.title.lower().replace("gpu", "GPU").replace("cpu", "CPU"), 0.0, 1.08 * max(total, most)),
        curves(values, names),
        y_level=(total, "all") if total else None,
    )


def _load_plot(comparison: Comparison) -> Plot:
    values = {
        policy: tuple(sorted((row.load, row.avg_jct_s) for row in comparison.rows if row.policy == policy and row.load))
        for policy in comparison.policies
    }
    most = max((row.avg_jct_s for row in comparison.rows if not isnan(row.avg_jct_s)), default=1.0)
    return Plot(
        "Load",
        "Mean job completion time by the jobs that arrive in an hour. Lower is better.",
        Axis("jobs an hour", comparison.loads[0], comparison.loads[-1]),
        Axis("mean completion", 0.0, 1.08 * most, Unit.DURATION),
        curves(values, comparison.policies),
    )


def _shares_plot(shown: Mapping[str, SimulationResult], names: Sequence[str], at: str) -> Plot | None:
    """GPU time of users against an even share of all users, a line for each user."""
    shares = {name: even_share_ratios(run) for name, run in shown.items()}
    users = sorted({user for of in shares.values() for user in of})
    most = max((ratio for of in shares.values() for ratio in of.values()), default=0.0)
    if len(users) < 2 or most <= 0:  # noqa: PLR2004  # with whom to share
        return None
    kept, places = users[:MAX_USERS], {user: float(index) for index, user in enumerate(users[:MAX_USERS])}
    values = {name: [(of[user], places[user]) for user in kept if user in of] for name, of in shares.items()}
    rest = f" The first {MAX_USERS} of {len(users)} users." if len(users) > MAX_USERS else ""
    return Plot(
        "Shares of users",
        f"GPU time of each user over that of an even share among users{at}; what users ask for differs.{rest}",
        Axis("GPU time / even share", 0.0, 1.05 * max(most, 1.0)),
        Axis("user", len(kept) - 0.5, -0.5),
        curves(values, names),
        joined=False,
        x_level=(1.0, "even"),
        categories=tuple(_short_user(user) for user in kept),
    )


_LONGEST_USER: Final = 10


def _short_user(user: str) -> str:
    shown = printable(user)
    return shown if len(shown) <= _LONGEST_USER else f"{shown[: _LONGEST_USER - 1]}…"


_HEADINGS = ("POLICY", "LOAD", "MEAN", "MEDIAN", "P99", "WAIT", "MAKESPAN", "FTF", "MOVES", "RATIO")


def comparison_view(comparison: Comparison, left_out: Sequence[str] = ()) -> RenderableType:
    """One line per policy and load, the headline, the cells without a result, and which jobs were left out."""
    shown = [index for index, heading in enumerate(_HEADINGS) if heading != "LOAD" or comparison.loads]
    columns = [Column(_HEADINGS[index], right=index > 0) for index in shown]
    rows = [[_cells(row)[index] for index in shown] for row in comparison.rows]
    lost = [safe_line(f"missing: {line}") for line in comparison.lost] + [safe_line(line) for line in left_out]
    return Group(Listing(columns, rows, shrinking=0), Text(), safe_line(f"{comparison.headline} (simulated)"), *lost)


def _cells(row: ComparisonRow) -> list[str]:
    return [
        row.policy,
        "-" if row.load is None else f"{significant(row.load)}/h",
        duration(row.avg_jct_s),
        duration(row.median_jct_s),
        duration(row.p99_jct_s),
        duration(row.avg_wait_s),
        duration(row.makespan_s),
        fixed(row.ftf_max, 2),
        fixed(row.migrations, 0),
        fixed(row.ratio, 2),
    ]


@dataclass(frozen=True, slots=True)
class PageColumn:
    """A column of the page's table, in which less is better: heading, meaning and how a value is shown."""

    heading: str
    meaning: str
    text: Callable[[float], str]


def _rounded(digits: int) -> Callable[[float], str]:
    return lambda value: "-" if isnan(value) else f"{value:,.{digits}f}"


_PAGE_COLUMNS: Final[Mapping[str, PageColumn]] = {
    "avg_jct_s": PageColumn("mean", "mean job completion time, from arrival to end", duration),
    "ratio": PageColumn("ratio", "the mean over that of the first policy at the same load", _rounded(2)),
    "median_jct_s": PageColumn("median", "half of the jobs complete within it", duration),
    "p99_jct_s": PageColumn("p99", "one job in a hundred takes longer", duration),
    "avg_wait_s": PageColumn("mean wait", "from arrival to the first start", duration),
    "makespan_s": PageColumn("makespan", "from the first arrival to the last end", duration),
    "ftf_max": PageColumn("worst slowdown", "completion over that with an even share of the cluster", _rounded(2)),
    "gpu_hours": PageColumn("GPU-hours", "held by jobs until they were done: less for the same work", _rounded(0)),
    "lost_gpu_hours": PageColumn("lost", "GPU-hours held for restarts and for work that was not kept", _rounded(1)),
    "restarts": PageColumn("restarts", "of running jobs, by checkpoint and requeue", _rounded(0)),
    "migrations": PageColumn("moves", "restarts on other nodes", _rounded(0)),
    "unfinished": PageColumn("left", "jobs that failed, were ended or never ran", _rounded(0)),
}


def comparison_page(
    sweep: Sweep, results: Sequence[CellResult | FailedCell], comparison: Comparison, written: float
) -> str:
    """One self-contained HTML file, written at that time (unix seconds)."""
    finished = [result for result in results if isinstance(result, CellResult)]
    options = sweep.cells[0].options if sweep.cells else None
    early = f" and {options.early:g} s after what happens" if options and options.early else ""
    models = sum(bool(job.model or job.task) for trace in sweep.traces for job in trace.jobs)
    jobs = sum(len(trace.jobs) for trace in sweep.traces)
    return render_page(
        "comparison.html",
        title=comparison.headline,
        written=written_at(written),
        columns=_PAGE_COLUMNS.values(),
        loads=comparison.loads,
        rows=_page_rows(comparison),
        lost=comparison.lost,
        equal=list(_equal_policies(finished)),
        plots=comparison_plots(finished, comparison),
        seeds=pluralise(len({result.cell.options.seed for result in finished}), "seed"),
        cluster=sweep.cluster,
        works=list(
            dict.fromkeys(
                f"{printable(trace.name)}, {len(trace.jobs)} jobs ({printable(trace.source)})" for trace in sweep.traces
            )
        ),
        left_out=sweep.left_out,
        models="" if models == jobs else _unnamed_models(models, jobs),
        terms=(
            f"Rounds every {options.period:g} s{early}; a restart costs {options.overhead:g} s."
            + (f" Measured are the jobs {options.window[0]}:{options.window[1]} by arrival." if options.window else "")
            if options
            else ""
        ),
        command=sweep.command,
    )


def _unnamed_models(models: int, jobs: int) -> str:
    who = "No job names" if not models else f"{models} of {jobs} jobs name"
    return (
        f"{who} a model or a task: for the others CPUs and memory above the GPU-proportional share make no difference."
        " sacct has the hints of jobs only with AccountingStoreFlags=job_comment."
    )


def _page_rows(comparison: Comparison) -> Sequence[Mapping[str, object]]:
    """The rows with the best of each column at each load, if there is a worse one."""
    rows = []
    for row in comparison.rows:
        others = [other for other in comparison.rows if other.load == row.load]
        cells = []
        for name, column in _PAGE_COLUMNS.items():
            value, values = getattr(row, name), [getattr(other, name) for other in others]
            text, best, worst = map(column.text, (value, min(values), max(values)))
            cells.append({"text": text, "value": "" if isnan(value) else value, "best": text == best != worst})
        series = comparison.policies.index(row.policy)
        rows.append({"policy": row.policy, "load": row.load, "series": series, "cells": cells})
    return rows


def _equal_policies(finished: Sequence[CellResult]) -> Iterator[str]:
    """Which policies run every job at the same times."""
    ends = dict[str, list[tuple[float | None, ...]]]()
    for result in finished:
        times = (time for job in result.run.jobs for time in (job.start, job.end))
        ends.setdefault(result.cell.policy.name, []).append(tuple(times))
    alike = dict[tuple[tuple[float | None, ...], ...], list[str]]()
    for policy, of_policy in ends.items():
        alike.setdefault(tuple(of_policy), []).append(policy)
    for first, *others in alike.values():
        if others:
            yield f"{' and '.join(others)} {'start' if len(others) > 1 else 'starts'} every job when {first} does."


def figures_view(figures: RunMetrics) -> RenderableType:
    """The metrics of a simulation, one line each."""
    others = ", ".join(f"{count} {state.lower()}" for state, count in figures.states.items() if state != "COMPLETED")
    rows = [
        ("jobs", f"{figures.finished} of {figures.jobs} completed" + (f", {others}" if others else "")),
        ("mean JCT", duration(figures.avg_jct_s)),
        ("median JCT", duration(figures.median_jct_s)),
        ("p99 JCT", duration(figures.p99_jct_s)),
        ("mean wait", duration(figures.avg_wait_s)),
        ("makespan", duration(figures.makespan_s)),
        ("useful GPU time", percent(figures.gpu_utilization)),
        ("CPU time allocated", percent(figures.cpu_utilization)),
        ("finish-time fairness", f"{fixed(figures.ftf_mean, 2)} mean, {fixed(figures.ftf_max, 2)} worst"),
        ("restarts", f"{figures.restarts}, of which {figures.migrations} on other nodes"),
        ("rounds", f"{figures.rounds}, {duration(figures.decision_s_median)} each"),
    ]
    name = figures.policy + (f"/{figures.order}" if figures.order else "")
    head = f"{name} over {figures.trace} (simulated, in {duration(figures.wall_s)}):"
    return Group(safe_line(head), Text(), Listing((Column(""), Column("")), rows, headings=False), _window(figures))


def _window(figures: RunMetrics) -> RenderableType:
    return Text(f"\nMetrics over {pluralise(figures.jobs, 'job')}.") if figures.finished < figures.jobs else Text()
