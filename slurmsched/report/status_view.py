"""Terminal view of `synsched status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.backends.slurm.hostlist import fold_hostlist
from slurmsched.model import JobState, NodeState, NodeUsage
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, memory, per_gpu
from slurmsched.report.status import ClusterStatus, JobStatus, LivenessState
from slurmsched.report.tables import Column, GpuBar, Listing, LoadBar, safe_line

MAX_NODES_DRAWN: Final = 12
"""Maximum number of nodes drawn one by one; above it there is one line per GPU type."""

_SHORT: Final = {
    JobState.PENDING: "PD",
    JobState.RUNNING: "R",
    JobState.COMPLETING: "CG",
    JobState.SUSPENDED: "S",
    JobState.FINISHED: "-",
}
_STYLES: Final = {
    LivenessState.ALIVE: "",
    LivenessState.LATE: "bold red",
    LivenessState.GONE: "bold red",
    LivenessState.NEVER: "bold yellow",
}


def status_view(status: ClusterStatus, every_node: bool = False) -> RenderableType:
    """Header, nodes, jobs and problems."""
    parts: list[RenderableType] = [header_view(status)]
    if status.nodes:
        parts += ["", nodes_view(status.nodes, every_node)]
    if status.fragments and status.fragments.sentence:
        parts += [safe_line(status.fragments.sentence)]
    if status.jobs:
        parts += ["", jobs_view(status.jobs)]
    if status.problems:
        parts += ["", Text(pluralise(len(status.problems), "problem"), style="bold red")]
        parts += (Padding(safe_line(problem), (0, 0, 0, 2), expand=False) for problem in status.problems)
    return Group(*parts)


def header_view(status: ClusterStatus) -> RenderableType:
    """The mode and policy, the daemon's liveness, and the last round."""
    where = f" on {status.cluster}" if status.cluster else ""
    last = status.round
    if last is None:
        return safe_line(f"synsched{where}: {status.liveness.sentence}", _STYLES[status.liveness.life])
    how = f"synsched{where}: mode {status.mode}, system {last.system}, order {last.ordering}"
    spent = sum(seconds or 0.0 for seconds in (last.observe_s, last.decide_s, last.plan_s, last.apply_s))
    took = f", took {duration(spent)}" if spent else ""
    return Group(
        safe_line(how, "bold"),
        safe_line(status.liveness.sentence, _STYLES[status.liveness.life]),
        safe_line(f"round {last.id}{took}; {status.running} running, {status.waiting} waiting"),
    )


def nodes_view(nodes: Sequence[NodeUsage], every_node: bool = False) -> RenderableType:
    """One bar per node with a sign per GPU; on a large cluster one bar per GPU type."""
    with_gpus = [node for node in nodes if node.gpus]
    if every_node or len(with_gpus) <= MAX_NODES_DRAWN:
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
            [_node_row(node) for node in with_gpus],
        )
    return Listing(
        (Column("TYPE"), Column("NODES", right=True), Column("USED", right=True), Column("GPUS")),
        list(_type_rows(with_gpus)),
    )


def jobs_view(jobs: Iterable[JobStatus], headings: bool = True) -> RenderableType:
    """One line per job: squeue's columns and the reason."""
    columns = (
        Column("JOBID"),
        Column("USER"),
        Column("GPUS", right=True),
        Column("ST"),
        Column("WHERE"),
        Column("CPU/GPU", right=True),
        Column("WHY"),
    )
    return Listing(columns, [_job_row(job) for job in jobs], headings)


def _node_row(node: NodeUsage) -> Sequence[RenderableType]:
    types = ",".join(sorted({gpu.type for gpu in node.gpus}))
    taken = len(node.gpus) - node.idle_gpus()
    up = node.state is NodeState.UP
    words = node.state_text.lower() or node.state.value
    return (
        node.name,
        types,
        f"{taken}/{len(node.gpus)}",
        GpuBar(node.gpus),
        f"{node.used.cpus}/{node.total.cpus}",
        f"{memory(node.used.memory)}/{memory(node.total.memory)}",
        safe_line(words if up or not node.reason else f"{words}: {node.reason}", "" if up else "red"),
    )


def _type_rows(nodes: Iterable[NodeUsage]) -> Iterator[Sequence[RenderableType]]:
    gpus: dict[str, list[bool]] = {}
    nodes_of_type: dict[str, set[str]] = {}
    for node in nodes:
        for gpu in node.gpus:
            gpus.setdefault(gpu.type, []).append(gpu.used > 0)
            nodes_of_type.setdefault(gpu.type, set()).add(node.name)
    for kind, taken in sorted(gpus.items()):
        used = f"{sum(taken)}/{len(taken)}"
        yield kind, str(len(nodes_of_type[kind])), used, LoadBar(sum(taken), len(taken), 40)


def _job_row(job: JobStatus) -> Sequence[RenderableType]:
    where = fold_hostlist(job.nodes) or (f"to {fold_hostlist(job.target)}" if job.target else "-")
    gpus = f"{job.gpus} {job.gpu_type}".rstrip()
    return (
        job.id,
        job.user,
        gpus,
        _SHORT[job.state],
        where,
        per_gpu(job.cpus, job.gpus),
        safe_line(("! " if job.problems else "") + job.why),
    )
