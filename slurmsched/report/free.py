"""`synsched free`: idle GPUs, the largest job that could start now, and why some idle GPUs are stranded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.model import ClusterFragmentation, NodeUsage
from slurmsched.model.overview import StrandedCause, UsableGpus, usable_gpus
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, fixed, memory
from slurmsched.report.tables import Column, Listing, safe_line


@dataclass(frozen=True, slots=True)
class DemandPerGpu:
    """What a job would request: a GPU type (None is any), and CPUs and memory (MiB) per GPU."""

    gpu_type: str | None = None
    cpus: int = 1
    memory: int = 0


ANY_DEMAND: Final = DemandPerGpu()


@dataclass(frozen=True, slots=True)
class NodeFreeGpus:
    """Idle GPUs of one type on one node: `usable` of them have enough free CPUs and memory for the demand, `at_share`
    their full GPU-proportional share. `cpus` and `memory` (MiB) are free. `why` is what strands the others."""

    node: str
    gpu_type: str
    idle: int
    usable: int
    at_share: int
    cpus: int
    memory: int
    why: str


@dataclass(frozen=True, slots=True)
class LargestJob:
    """The largest jobs of one GPU type that could start now, in GPUs: on one node, and over `nodes` nodes with equally
    many GPUs each. `idle` of all `gpus` are idle, `stranded` of these unusable."""

    gpu_type: str
    gpus: int
    idle: int
    stranded: int
    on_one_node: int
    over_nodes: int
    nodes: int


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Free capacity as of `at` (unix seconds); `waiting` managed jobs are ahead of anything submitted now."""

    at: float
    types: tuple[LargestJob, ...]
    nodes: tuple[NodeFreeGpus, ...]
    waiting: int
    fragments: ClusterFragmentation | None


def free_capacity(
    nodes: Sequence[NodeUsage],
    at: float,
    waiting: int,
    demand: DemandPerGpu = ANY_DEMAND,
    fragments: ClusterFragmentation | None = None,
) -> FreeCapacity:
    """The free capacity for `demand`. `waiting` managed jobs are ahead; `fragments` are as of the last round."""
    types = sorted({gpu.type for node in nodes for gpu in node.gpus if demand.gpu_type in (None, gpu.type)})
    rows = tuple(
        _node_free_gpus(node, kind, demand)
        for kind in types
        for node in nodes
        if any(gpu.type == kind for gpu in node.gpus)
    )
    sums = tuple(_largest_job(kind, nodes, [row for row in rows if row.gpu_type == kind]) for kind in types)
    return FreeCapacity(at, sums, rows, waiting, fragments)


def _node_free_gpus(node: NodeUsage, gpu_type: str, demand: DemandPerGpu) -> NodeFreeGpus:
    gpus, left = usable_gpus(node, gpu_type, demand.cpus, demand.memory), node.free
    why = _stranded_reason(node, demand, gpus)
    return NodeFreeGpus(node.name, gpu_type, gpus.idle, gpus.usable, gpus.at_share, left.cpus, left.memory, why)


def _stranded_reason(node: NodeUsage, demand: DemandPerGpu, gpus: UsableGpus) -> str:
    left, stranded = node.free, pluralise(gpus.idle - gpus.usable, "idle GPU")
    match gpus.cause:
        case StrandedCause.RESERVED:
            return f"reserved: {node.reservation}"
        case StrandedCause.NODE_STATE:
            return (node.state_text.lower() or node.state.value) + (f": {node.reason}" if node.reason else "")
        case StrandedCause.CPU:
            return f"{stranded} stranded: {pluralise(left.cpus, 'CPU')} left, {demand.cpus} needed for each GPU"
        case StrandedCause.MEMORY:
            needed = f", {memory(demand.memory)} needed for each GPU" if demand.memory else ""
            return f"{stranded} stranded: {memory(left.memory)} of memory left{needed}"
        case StrandedCause.SHARE:
            return f"{pluralise(gpus.idle - gpus.at_share, 'GPU')} only below the GPU-proportional share"
        case None:
            return ""


def _largest_job(gpu_type: str, nodes: Iterable[NodeUsage], rows: Sequence[NodeFreeGpus]) -> LargestJob:
    gpus = sum(gpu.type == gpu_type for node in nodes for gpu in node.gpus)
    idle, usable = sum(row.idle for row in rows), [row.usable for row in rows]
    splits = ((each * sum(have >= each for have in usable), each) for each in range(1, max(usable, default=0) + 1))
    total, each = max(splits, default=(0, 1))
    return LargestJob(gpu_type, gpus, idle, idle - sum(usable), max(usable, default=0), total, total // each)


def free_view(free: FreeCapacity, now: float) -> RenderableType:
    """One line per GPU type, then one per node with idle GPUs."""
    sums = Listing(
        (
            Column("TYPE"),
            Column("IDLE", right=True),
            Column("STRANDED", right=True),
            Column("LARGEST JOB THAT COULD START NOW"),
        ),
        [(kind.gpu_type, f"{kind.idle}/{kind.gpus}", str(kind.stranded), largest_text(kind)) for kind in free.types],
    )
    nodes = Listing(
        (
            Column("NODE"),
            Column("TYPE"),
            Column("IDLE", right=True),
            Column("USABLE", right=True),
            Column("CPUS", right=True),
            Column("MEM", right=True),
            Column("WHY"),
        ),
        [
            (row.node, row.gpu_type, str(row.idle), str(row.usable), str(row.cpus), memory(row.memory), row.why)
            for row in free.nodes
            if row.idle
        ],
    )
    parts: list[RenderableType] = [sums]
    if any(row.idle for row in free.nodes):
        parts += ["", nodes]
    if free.fragments and free.fragments.sentence:
        parts += ["", safe_line(free.fragments.sentence), "", _fragments_listing(free.fragments)]
        parts += ["", Text(_MEASURES, style="dim")]
    parts += (Text(note, style="dim") for note in _notes(free, now))
    return Group(*parts)


_MEASURES: Final = (
    "STRANDED and USABLE: for the CPUs and memory per GPU that were asked for;"
    " LOST: what usual jobs cannot use, on average"
)


def _fragments_listing(fragments: ClusterFragmentation) -> Listing:
    """By node: idle GPUs that a typical job cannot use, on average, split by what is missing."""
    columns = (
        Column("NODE"),
        *(Column(heading, right=True) for heading in ("IDLE", "LOST", "NO GPU", "NO CPU", "NEITHER", "OTHER TYPE")),
    )
    rows = [("all nodes", fragments.all), *((node.node, node) for node in fragments.nodes if node.lost)]
    return Listing(columns, [(name, *(fixed(gpus) for gpus in row.columns)) for name, row in rows])


def _notes(free: FreeCapacity, now: float) -> Iterator[str]:
    yield ""
    yield f"as of {duration(now - free.at)} ago"
    if free.waiting:
        ahead = "it comes first" if free.waiting == 1 else "they come first"
        yield f"{pluralise(free.waiting, 'managed job')} waiting already: {ahead}"


def largest_text(largest: LargestJob) -> str:
    """The largest jobs that could start now: `4 GPUs on one node, 12 over 3 nodes`."""
    if not largest.on_one_node:
        return "none"
    on_one_node = f"{pluralise(largest.on_one_node, 'GPU')} on one node"
    if largest.over_nodes == largest.on_one_node:
        return on_one_node
    return f"{on_one_node}, {largest.over_nodes} over {largest.nodes} nodes"
