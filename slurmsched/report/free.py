"""What is free right now, what could start on it, and why some idle GPUs are out of reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.model import Fragments, NodeState, NodeUse
from slurmsched.report.quantities import count, memory

__all__ = ["Free", "Largest", "Need", "NodeFree", "free"]


@dataclass(frozen=True, slots=True)
class Need:
    """What a job would ask for: a GPU type (None is any), and CPUs and memory (MiB) for each GPU."""

    gpu_type: str | None = None
    cpus: int = 1
    memory: int = 0


ANY: Final = Need()


@dataclass(frozen=True, slots=True)
class NodeFree:
    """One node's idle GPUs of one type. `usable` of them have the CPUs and the memory needed;
    `at_share` could start with their full GPU-proportional share. `why` says what strands the others."""

    node: str
    gpu_type: str
    idle: int
    usable: int
    at_share: int
    cpus: int
    memory: int
    why: str


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest jobs of one GPU type that would start now: on one node, and over `nodes` nodes with equal GPUs."""

    gpu_type: str
    gpus: int
    idle: int
    stranded: int
    on_one_node: int
    over_nodes: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Free:
    """As of `at` (unix seconds); `waiting` managed jobs come before anything submitted now."""

    at: float
    types: tuple[Largest, ...]
    nodes: tuple[NodeFree, ...]
    waiting: int
    fragments: Fragments | None


def free(
    nodes: Sequence[NodeUse],
    at: float,
    waiting: int,
    need: Need = ANY,
    fragments: Fragments | None = None,
) -> Free:
    """What could start now. `waiting` managed jobs come first; `fragments` are those of the last round."""
    types = sorted({gpu.type for node in nodes for gpu in node.gpus if need.gpu_type in (None, gpu.type)})
    rows = tuple(
        _node(node, kind, need) for kind in types for node in nodes if any(gpu.type == kind for gpu in node.gpus)
    )
    sums = tuple(_largest(kind, nodes, [row for row in rows if row.gpu_type == kind]) for kind in types)
    return Free(at, sums, rows, waiting, fragments)


def _node(node: NodeUse, kind: str, need: Need) -> NodeFree:
    idle, left, up = node.idle(kind), node.free, node.state is NodeState.UP
    usable = min(idle, _enough_for(left.cpus, need.cpus), _enough_for(left.memory, need.memory)) if up else 0
    devices = len(node.gpus)
    share = min(left.cpus * devices // node.total.cpus, left.memory * devices // node.total.memory)
    at_share = min(idle, max(share, 0)) if up else 0
    return NodeFree(
        node.name, kind, idle, usable, at_share, left.cpus, left.memory, _why(node, need, idle, usable, at_share)
    )


def _enough_for(left: int, each: int) -> int:
    """How many GPUs `left` serves with `each`; without a need, any number as long as something is left."""
    if left <= 0:
        return 0
    return left // each if each else left


def _why(node: NodeUse, need: Need, idle: int, usable: int, at_share: int) -> str:
    left, stranded = node.free, count(idle - usable, "idle GPU")
    if not idle:
        return ""
    if node.state is not NodeState.UP:
        return (node.state_text.lower() or node.state.value) + (f": {node.reason}" if node.reason else "")
    if usable < idle and _enough_for(left.cpus, need.cpus) == usable:
        return f"{stranded} stranded: {count(left.cpus, 'CPU')} left, {need.cpus} needed for each GPU"
    if usable < idle:
        needed = f", {memory(need.memory)} needed for each GPU" if need.memory else ""
        return f"{stranded} stranded: {memory(left.memory)} of memory left{needed}"
    if at_share < idle:
        return f"{count(idle - at_share, 'GPU')} only below the GPU-proportional share"
    return ""


def _largest(kind: str, nodes: Iterable[NodeUse], rows: Sequence[NodeFree]) -> Largest:
    gpus = sum(gpu.type == kind for node in nodes for gpu in node.gpus)
    idle, usable = sum(row.idle for row in rows), [row.usable for row in rows]
    splits = ((each * sum(have >= each for have in usable), each) for each in range(1, max(usable, default=0) + 1))
    total, each = max(splits, default=(0, 1))
    return Largest(kind, gpus, idle, idle - sum(usable), max(usable, default=0), total, total // each)
