"""`synsched status` on a screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.backends.slurm.hostlist import fold
from slurmsched.model import JobState, NodeState, NodeUse
from slurmsched.report.bars import GpuBar, LoadBar
from slurmsched.report.listing import Column, Listing
from slurmsched.report.liveness import Life
from slurmsched.report.quantities import count, duration, memory, per_gpu
from slurmsched.report.status import QueuedJob, Status
from slurmsched.report.words import line

__all__ = ["header_view", "jobs_view", "nodes_view", "status_view"]

MOST_NODES: Final = 12
"""Nodes drawn one by one; more are drawn one line for each GPU type."""

_SHORT: Final = {
    JobState.PENDING: "PD",
    JobState.RUNNING: "R",
    JobState.COMPLETING: "CG",
    JobState.SUSPENDED: "S",
    JobState.FINISHED: "-",
}
_STYLES: Final = {Life.ALIVE: "", Life.LATE: "bold red", Life.GONE: "bold red", Life.NEVER: "bold yellow"}


def status_view(status: Status, every_node: bool = False) -> RenderableType:
    """Header, nodes, jobs, and what has to be mended."""
    parts: list[RenderableType] = [header_view(status)]
    if status.nodes:
        parts += ["", nodes_view(status.nodes, every_node)]
    if status.fragments and status.fragments.sentence:
        parts += [line(status.fragments.sentence)]
    if status.jobs:
        parts += ["", jobs_view(status.jobs)]
    if status.problems:
        parts += ["", Text(count(len(status.problems), "problem"), style="bold red")]
        parts += (Padding(line(problem), (0, 0, 0, 2), expand=False) for problem in status.problems)
    return Group(*parts)


def header_view(status: Status) -> RenderableType:
    """Who schedules here, and whether it lives."""
    where = f" on {status.cluster}" if status.cluster else ""
    last = status.round
    if last is None:
        return line(f"synsched{where}: {status.liveness.sentence}", _STYLES[status.liveness.life])
    how = f"synsched{where}: mode {status.mode}, system {last.system}, order {last.ordering}"
    spent = sum(part or 0.0 for part in (last.observe_s, last.decide_s, last.plan_s, last.apply_s))
    took = f", took {duration(spent)}" if spent else ""
    return Group(
        line(how, "bold"),
        line(status.liveness.sentence, _STYLES[status.liveness.life]),
        line(f"round {last.id}{took}; {status.running} running, {status.waiting} waiting"),
    )


def nodes_view(nodes: Sequence[NodeUse], every_node: bool = False) -> RenderableType:
    """A sign for each GPU of each node; on a large cluster a bar for each GPU type."""
    with_gpus = [node for node in nodes if node.gpus]
    if every_node or len(with_gpus) <= MOST_NODES:
        return Listing(
            (
                Column("NODE"),
                Column("TYPE"),
                Column("USED", right=True),
                Column("GPUS"),
                Column("CPUS", right=True),
                Column("MEM", right=True),
                Column("STATE"),
            ),
            [_node(node) for node in with_gpus],
        )
    return Listing(
        (Column("TYPE"), Column("NODES", right=True), Column("USED", right=True), Column("GPUS")),
        list(_types(with_gpus)),
    )


def jobs_view(jobs: Iterable[QueuedJob], headings: bool = True) -> RenderableType:
    """One line for each job, squeue's columns and the reason."""
    columns = (
        Column("JOBID"),
        Column("USER"),
        Column("GPUS", right=True),
        Column("ST"),
        Column("WHERE"),
        Column("CPU/GPU", right=True),
        Column("WHY"),
    )
    return Listing(columns, [_job(job) for job in jobs], headings)


def _node(node: NodeUse) -> Sequence[RenderableType]:
    types = ",".join(sorted({gpu.type for gpu in node.gpus}))
    taken = len(node.gpus) - node.idle()
    up = node.state is NodeState.UP
    words = node.state_text.lower() or node.state.value
    return (
        node.name,
        types,
        f"{taken}/{len(node.gpus)}",
        GpuBar(node.gpus),
        f"{node.used.cpus}/{node.total.cpus}",
        f"{memory(node.used.memory)}/{memory(node.total.memory)}",
        line(words if up or not node.reason else f"{words}: {node.reason}", "" if up else "red"),
    )


def _types(nodes: Iterable[NodeUse]) -> Iterator[Sequence[RenderableType]]:
    gpus: dict[str, list[bool]] = {}
    places: dict[str, set[str]] = {}
    for node in nodes:
        for gpu in node.gpus:
            gpus.setdefault(gpu.type, []).append(gpu.used > 0)
            places.setdefault(gpu.type, set()).add(node.name)
    for kind, taken in sorted(gpus.items()):
        used = f"{sum(taken)}/{len(taken)}"
        yield kind, str(len(places[kind])), used, LoadBar(sum(taken), len(taken), 40)


def _job(job: QueuedJob) -> Sequence[RenderableType]:
    where = fold(job.nodes) or (f"to {fold(job.target)}" if job.target else "-")
    gpus = f"{job.gpus} {job.gpu_type}".rstrip()
    return (
        job.id,
        job.user,
        gpus,
        _SHORT[job.state],
        where,
        per_gpu(job.cpus, job.gpus),
        line(("! " if job.problems else "") + job.why),
    )
