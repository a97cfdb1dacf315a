"""Terminal views of a trace and of the metrics of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, percent
from slurmsched.report.tables import Column, Listing
from slurmsched.simulation import RunMetrics
from slurmsched.traces.formats.registry import TRACE_FORMATS
from slurmsched.traces.formats.sacct import SACCT_FIELDS
from slurmsched.traces.trace import ImportedTrace, TraceSummary


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
        ("finish-time fairness", f"{figures.ftf_mean:.2f} mean, {figures.ftf_max:.2f} worst"),
        ("restarts", f"{figures.restarts}, of which {figures.migrations} on other nodes"),
        ("rounds", f"{figures.rounds}, {duration_or_dash(figures.decision_s_median)} each"),
    ]
    name = figures.policy + (f"/{figures.order}" if figures.order else "")
    head = f"{name} over {figures.trace} (simulated, in {duration(figures.wall_s)}):"
    return Group(Text(head), Text(), Listing((Column(""), Column("")), rows, headings=False), _window(figures))


def _window(figures: RunMetrics) -> RenderableType:
    return Text(f"\nMetrics over {pluralise(figures.jobs, 'job')}.") if figures.finished < figures.jobs else Text()


_HOUR = 3600.0


def trace_view(summary: TraceSummary) -> RenderableType:
    """The summary of a trace, one line per property."""
    rows = [
        ("jobs", f"{summary.jobs} in {duration(summary.span_h * _HOUR)}"),
        ("GPU-hours", f"{summary.gpu_hours:.1f}"),
        ("arriving work", f"keeps {summary.busy_gpus:.1f} GPUs busy" if summary.span_h else "all at once"),
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
    return Group(Text(f"{summary.name} ({summary.source})"), Text(), listing)


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
