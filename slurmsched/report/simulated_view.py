"""One simulation for people."""

from __future__ import annotations

from math import isnan

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.model.wording import counted
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration, percent
from slurmsched.simulation import Figures

__all__ = ["figures_view", "time"]


def time(seconds: float) -> str:
    """A time, or a dash where there is none."""
    return "-" if isnan(seconds) else duration(seconds)


def figures_view(figures: Figures) -> RenderableType:
    """What a run amounts to, a line for each figure."""
    others = ", ".join(f"{count} {state.lower()}" for state, count in figures.states.items() if state != "COMPLETED")
    rows = [
        ("jobs", f"{figures.finished} of {figures.jobs} completed" + (f", {others}" if others else "")),
        ("mean JCT", time(figures.avg_jct_s)),
        ("median JCT", time(figures.median_jct_s)),
        ("p99 JCT", time(figures.p99_jct_s)),
        ("mean wait", time(figures.avg_wait_s)),
        ("makespan", time(figures.makespan_s)),
        ("GPU time that was useful", percent(figures.gpu_utilization)),
        ("CPU time allocated", percent(figures.cpu_utilization)),
        ("finish-time fairness", f"{figures.ftf_mean:.2f} in the mean, {figures.ftf_max:.2f} at most"),
        ("restarts", f"{figures.restarts}, of which {figures.migrations} on other nodes"),
        ("rounds", f"{figures.rounds}, {time(figures.decision_s_median)} each"),
    ]
    name = figures.policy + (f"/{figures.order}" if figures.order else "")
    head = f"{name} over {figures.trace} (simulated, in {duration(figures.wall_s)}):"
    return Group(Text(head), Text(), Listing((Column(""), Column("")), rows, headings=False), _window(figures))


def _window(figures: Figures) -> RenderableType:
    return Text(f"\nFigures are of {counted(figures.jobs, 'job')}.") if figures.finished < figures.jobs else Text()
