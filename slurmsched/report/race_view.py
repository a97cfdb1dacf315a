"""The demo's race on a screen: both clusters while it runs, and how they came through. All of it simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.demo.race import Comparison, Frame
from slurmsched.demo.score import Score
from slurmsched.model import JobState, NodeUse, Outcome, Snapshot, Verb, survey
from slurmsched.report.bars import GpuBar
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration
from slurmsched.report.words import line

__all__ = ["comparison_view", "frame_line", "frame_view"]

_LATEST: Final = 8
"""Operations shown below the bars."""

_TOLD: Final = frozenset({Verb.RELEASE, Verb.REQUEUE})
"""Those that people can see happen: starts and displacements."""


def frame_view(frame: Frame, latest: Sequence[Outcome]) -> RenderableType:
    """Both clusters node by node, and the latest things done on the one that has rounds."""
    ours, plain = survey(frame.report.snapshot).nodes, survey(frame.plain).nodes
    columns = (
        Column("NODE"),
        Column("WITH ROUNDS"),
        Column("CPUS", right=True),
        Column("   PLAIN SLURM"),
        Column("CPUS", right=True),
    )
    rows = [
        (mine.name, GpuBar(mine.gpus), _cpus(mine), _indented(other), _cpus(other))
        for mine, other in zip(ours, plain, strict=True)
    ]
    told = [outcome.operation.sentence for outcome in latest if outcome.operation.verb in _TOLD][-_LATEST:]
    queues = ("", _queue(frame.report.snapshot), "", f"   {_queue(frame.plain)}", "")
    head = f"two simulated clusters, the same jobs, after {duration(frame.elapsed)}"
    filled = [*told, *[""] * (_LATEST - len(told))]
    return Group(
        line(head, "bold"),
        Text(""),
        Listing(columns, [*rows, queues]),
        Text(""),
        *(line(said, "dim") for said in filled),
    )


def frame_line(frame: Frame) -> str:
    """The same in one line, for what is no screen."""
    at = duration(frame.elapsed)
    return f"simulated, {at}: with rounds {_queue(frame.report.snapshot)}; plain Slurm {_queue(frame.plain)}"


def comparison_view(comparison: Comparison) -> RenderableType:
    """The figures side by side, and what the second is of the first."""
    columns = (
        Column(f"SIMULATED, {comparison.plain.jobs} JOBS"),
        Column("PLAIN SLURM", right=True),
        Column("WITH ROUNDS", right=True),
        Column("RATIO", right=True),
    )
    return Listing(columns, list(_rows(comparison)))


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    value: Callable[[Score], float]
    said: Callable[[float], str]


def _percent(part: float) -> str:
    return f"{part:.0%}"


_FIGURES: Final = (
    _Figure("mean job completion time", lambda score: score.mean_jct, duration),
    _Figure("median job completion time", lambda score: score.median_jct, duration),
    _Figure("99th percentile of it", lambda score: score.p99_jct, duration),
    _Figure("makespan", lambda score: score.makespan, duration),
    _Figure("GPU time in work that was kept", lambda score: score.useful, _percent),
    _Figure("work done, per GPU time", lambda score: score.work, _percent),
    _Figure("finished jobs", lambda score: score.finished, "{:.0f}".format),
    _Figure("restarts", lambda score: score.restarts, "{:.0f}".format),
)


def _rows(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    for figure in _FIGURES:
        plain, ours = figure.value(comparison.plain), figure.value(comparison.rounds)
        if isnan(plain) or isnan(ours):
            yield figure.name, "-", "-", "-"
        else:
            yield figure.name, figure.said(plain), figure.said(ours), f"{ours / plain:.2f}" if plain else "-"


def _queue(snapshot: Snapshot) -> str:
    running = sum(1 for _ in snapshot.in_state(JobState.RUNNING))
    waiting = sum(1 for _ in snapshot.in_state(JobState.PENDING))
    return f"{running} running, {waiting} waiting"


def _cpus(node: NodeUse) -> str:
    return f"{node.used.cpus}/{node.total.cpus}"


def _indented(node: NodeUse) -> RenderableType:
    return Padding(GpuBar(node.gpus), (0, 0, 0, 3), expand=False)
