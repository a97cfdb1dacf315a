"""Terminal views of traces: a queue at a glance, what was left out of it, and the formats that can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text

from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import amount, duration, percent
from slurmsched.report.tables import Column, Listing, LoadBar, safe_line
from slurmsched.traces.formats.registry import TRACE_FORMATS
from slurmsched.traces.formats.sacct import SACCT_FIELDS
from slurmsched.traces.statistics import ArrivalCurves, ClusterLoad, JobGroup, TraceSummary

_HOUR: Final = 3600.0
_BAR_SIGNS: Final = (" ▁▂▃▄▅▆▇█", " .:-=+*#%")
_LISTED_OWNERS: Final = 5
_WITHOUT_DECIMALS: Final = 100.0


@dataclass(frozen=True, slots=True)
class ColumnChart:
    """Values as columns side by side, `height` lines high, from 0 to the highest of them; each is `wide` signs wide."""

    values: Sequence[float]
    height: int = 4
    wide: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = _BAR_SIGNS[options.ascii_only]
        full = len(signs) - 1
        values = [value if isfinite(value) and value > 0 else 0.0 for value in self.values]
        top = max(values, default=0.0)
        levels = [ceil(value / top * self.height * full) if top else 0 for value in values]
        for line in reversed(range(self.height)):
            yield Text("".join(signs[min(max(level - line * full, 0), full)] * self.wide for level in levels).rstrip())

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.wide * len(self.values), self.wide * len(self.values))


def trace_view(summary: TraceSummary) -> RenderableType:
    """A queue at a glance: what it is, the load, how jobs arrive, and tables by GPUs, duration and owner."""
    arrive = f"arriving in {duration(summary.span_h * _HOUR)}" if summary.span_h else "all arriving at once"
    parts: list[RenderableType] = [
        safe_line(f"{summary.name} ({summary.source})", "bold"),
        safe_line(f"{pluralise(summary.jobs, 'job')} of {amount(summary.gpu_hours, 0)} GPU-hours, {arrive}"),
        *map(safe_line, _load_lines(summary)),
        *map(safe_line, skipped_lines(summary.skipped)),
        *_charts(summary.curves),
    ]
    for heading, groups in (
        ("GPUS", summary.by_gpus),
        ("AT MOST", summary.by_duration),
        ("USER", summary.by_user[:_LISTED_OWNERS]),
    ):
        if groups:
            parts += ["", _groups_listing(heading, groups, summary)]
    if len(summary.by_user) > _LISTED_OWNERS:
        others = summary.user_count - _LISTED_OWNERS
        parts.append(safe_line(f"and {pluralise(others, 'other user')}" if others > 0 else "and others"))
    parts += ["", *_frequent(summary)]
    return Group(*parts) if parts[-1] else Group(*parts[:-1])


def _load_lines(summary: TraceSummary) -> Iterator[str]:
    median = duration(summary.duration_h.get("median", 0.0) * _HOUR)
    longest = duration(summary.duration_h.get("max", 0.0) * _HOUR)
    yield f"half of the jobs run at most {median}, the longest {longest}"
    digits = 0 if summary.busy_gpus >= _WITHOUT_DECIMALS else 1
    peak = amount(summary.peak_gpus, digits)
    if summary.span_h:
        busy = amount(summary.busy_gpus, digits)
        if summary.busy_gpus > summary.peak_gpus:  # jobs run on after the last arrival
            yield f"{busy} GPU-hours arrive in an hour; started on arrival they keep at most {_gpus(peak)} busy"
        else:
            yield f"started on arrival they keep {_gpus(busy)} busy on average, {peak} at most"
    else:
        yield f"started on arrival they keep {_gpus(peak)} busy"
    if (load := summary.cluster) is not None:
        yield from _cluster_lines(load, all_at_once=not summary.span_h)


def _gpus(number: str) -> str:
    return f"{number} GPU" if number == "1" else f"{number} GPUs"


def _cluster_lines(load: ClusterLoad, *, all_at_once: bool) -> Iterator[str]:
    name = f"{load.name} ({pluralise(load.gpus, 'GPU')})"
    if all_at_once:
        yield f"{name}: the work takes {duration(load.least_h * _HOUR)} at least"
    else:
        yield f"{name}: {percent(load.load)} load; {percent(load.over)} of the time more GPUs are wanted"
    if load.too_wide:
        yield f"{name}: {pluralise(load.too_wide, 'job')} cannot run: too few GPUs of their types"


def _charts(curves: ArrivalCurves) -> Iterator[RenderableType]:
    if not curves.jobs or not curves.gpus:
        return
    step, wide = duration(curves.step_h * _HOUR), max(1, 60 // len(curves.jobs))
    for heading, values in (
        (f"jobs that arrive in {step}", curves.jobs),
        (f"GPUs busy if jobs start on arrival, means of {step}", curves.gpus),
    ):
        yield from ("", safe_line(f"{heading}: {amount(min(values), 0)} to {amount(max(values), 0)}"))
        yield ColumnChart(values, wide=wide)
    first, last = "first arrival", f"{duration(curves.step_h * len(curves.jobs) * _HOUR)} later"
    gap = wide * len(curves.jobs) - len(first) - len(last)
    yield safe_line(f"{first}{' ' * max(gap, 1)}{last}", "dim")


def _groups_listing(heading: str, groups: Sequence[JobGroup], summary: TraceSummary) -> Listing:
    columns = (
        *(Column(heading), Column("JOBS", right=True), Column("%", right=True), Column("")),
        *(Column("GPU-HOURS", right=True), Column("%", right=True), Column("")),
    )
    rows = [
        (
            *(group.name, str(group.jobs), percent(_part(group.jobs, summary.jobs)).removesuffix(" %")),
            LoadBar(group.jobs, summary.jobs, 12),
            *(amount(group.gpu_hours, 0), percent(_part(group.gpu_hours, summary.gpu_hours)).removesuffix(" %")),
            LoadBar(_finite(group.gpu_hours), _finite(summary.gpu_hours), 12),
        )
        for group in groups
    ]
    return Listing(columns, rows, shrinking=0)


def _part(number: float, of: float) -> float:
    return number / of if of and isfinite(of) else 0.0


def _finite(number: float) -> float:
    return number if isfinite(number) else 0.0


def _frequent(summary: TraceSummary) -> Iterator[RenderableType]:
    rows = [
        (name, counts)
        for name, counts in (
            ("models", _listed(summary.models)),
            ("GPU types", _listed(summary.types)),
            ("copies of a job", _listed(summary.copies)),
        )
        if counts
    ]
    if rows:
        yield Listing((Column(""), Column("")), rows, headings=False, wrapped=True)


def skipped_lines(skipped: Mapping[str, int]) -> list[str]:
    """One line per reason why jobs were left out, the most frequent first."""
    reasons = sorted(skipped.items(), key=lambda item: -item[1])
    return [f"left out: {pluralise(count, 'job')} ({why})" for why, count in reasons]


def formats_view() -> RenderableType:
    """The trace formats that can be read, and how to export a Slurm cluster's last month."""
    rows = [(name, trace_format.summary) for name, trace_format in TRACE_FORMATS.items()]
    command = f"SLURM_TIME_FORMAT=%s sacct -aX --parsable2 -S now-30days -o {','.join(SACCT_FIELDS)}"
    return Group(Listing((Column("FORMAT"), Column("WHAT")), rows), Text(f"\nYour cluster's last month:\n{command}"))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
