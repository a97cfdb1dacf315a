"""Terminal views of the demo: both simulated clusters while it runs, and their metrics at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.demo.race import ClusterScore, RaceFrame, RaceResult
from slurmsched.model import JobState, NodeUsage, Outcome, Snapshot, Verb, cluster_overview
from slurmsched.report.quantities import amount, duration, fixed, percent
from slurmsched.report.tables import Column, GpuBar, Listing, safe_line

_LATEST_SHOWN: Final = 8
"""Number of operations shown below the bars."""

_SHOWN_VERBS: Final = frozenset({Verb.RELEASE, Verb.REQUEUE})
"""Starts and evictions, which are visible in the bars."""


def frame_view(frame: RaceFrame, latest: Sequence[Outcome]) -> RenderableType:
    """GPU bars of both clusters node by node, and the latest operations of the rounds."""
    scheduled, plain = cluster_overview(frame.report.snapshot).nodes, cluster_overview(frame.plain).nodes
    columns = (
        Column("NODE"),
        Column("WITH ROUNDS"),
        Column("CPUS", right=True),
        Column("   PLAIN SLURM"),
        Column("CPUS", right=True),
    )
    rows = [
        (node.name, GpuBar(node.gpus), _cpus(node), _indented(plain_node), _cpus(plain_node))
        for node, plain_node in zip(scheduled, plain, strict=True)
    ]
    lines = [outcome.operation.sentence for outcome in latest if outcome.operation.verb in _SHOWN_VERBS]
    lines = lines[-_LATEST_SHOWN:]
    queues = ("", _queue(frame.report.snapshot), "", f"   {_queue(frame.plain)}", "")
    head = f"two simulated clusters, the same jobs, after {duration(frame.elapsed)}"
    lines += [""] * (_LATEST_SHOWN - len(lines))
    return Group(
        safe_line(head, "bold"),
        Text(""),
        Listing(columns, [*rows, queues]),
        Text(""),
        *(safe_line(line, "dim") for line in lines),
    )


def frame_line(frame: RaceFrame) -> str:
    """The frame in one line, for output that is no terminal."""
    at = duration(frame.elapsed)
    return f"simulated, {at}: with rounds {_queue(frame.report.snapshot)}; plain Slurm {_queue(frame.plain)}"


def race_result_view(result: RaceResult) -> RenderableType:
    """The metrics of both clusters side by side; RATIO is with rounds divided by plain Slurm."""
    columns = (
        Column(f"SIMULATED, {result.plain.jobs} JOBS"),
        Column("PLAIN SLURM", right=True),
        Column("WITH ROUNDS", right=True),
        Column("RATIO", right=True),
    )
    return Listing(columns, list(_rows(result)))


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    value: Callable[[ClusterScore], float]
    format: Callable[[float], str]


_FIGURES: Final = (
    _Figure("mean job completion time", lambda score: score.mean_jct, duration),
    _Figure("median job completion time", lambda score: score.median_jct, duration),
    _Figure("99th percentile of it", lambda score: score.p99_jct, duration),
    _Figure("makespan", lambda score: score.makespan, duration),
    _Figure("worst finish-time fairness", lambda score: score.worst_fairness, lambda ratio: fixed(ratio, 2)),
    _Figure("GPU time in work that was kept", lambda score: score.useful, percent),
    _Figure("work done, per GPU time", lambda score: score.work, percent),
    _Figure("finished jobs", lambda score: score.finished, amount),
    _Figure("restarts", lambda score: score.restarts, amount),
)


def _rows(result: RaceResult) -> Iterator[tuple[str, str, str, str]]:
    for figure in _FIGURES:
        plain, rounds = figure.value(result.plain), figure.value(result.rounds)
        if isnan(plain) or isnan(rounds):
            yield figure.name, "-", "-", "-"
        else:
            yield figure.name, figure.format(plain), figure.format(rounds), fixed(rounds / plain, 2) if plain else "-"


def _queue(snapshot: Snapshot) -> str:
    running = sum(1 for _ in snapshot.jobs_in_state(JobState.RUNNING))
    waiting = sum(1 for _ in snapshot.jobs_in_state(JobState.PENDING))
    return f"{running} running, {waiting} waiting"


def _cpus(node: NodeUsage) -> str:
    return f"{node.used.cpus}/{node.total.cpus}"


def _indented(node: NodeUsage) -> RenderableType:
    return Padding(GpuBar(node.gpus), (0, 0, 0, 3), expand=False)
