"""What is in use, node by node: what `status` and `free` show without asking Slurm again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmsched.model.job import JobId
from slurmsched.model.node import Node, NodeState
from slurmsched.model.resources import Resources
from slurmsched.model.snapshot import Snapshot

__all__ = ["GpuUse", "NodeUse", "Overview", "survey"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One device: how much of it is taken, in milli-GPU, and by whom. `jobs` is empty where Slurm shows no indices."""

    index: int
    type: str
    used: int = 0
    jobs: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node: its devices, and what is taken of its GPUs, CPUs and memory (MiB)."""

    name: str
    gpus: tuple[GpuUse, ...]
    total: Resources
    used: Resources
    state: NodeState = NodeState.UP
    state_text: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def free(self) -> Resources:
        return self.total - self.used

    def idle(self, gpu_type: str | None = None) -> int:
        """Whole idle GPUs, of one type or of any."""
        return sum(gpu.used == 0 and gpu_type in (None, gpu.type) for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster at `time` (unix seconds), nodes in the snapshot's order. Stored with each round as JSON."""

    time: float
    nodes: tuple[NodeUse, ...]
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = ()


def survey(snapshot: Snapshot) -> Overview:
    """What a snapshot shows of each node, every job counted, managed or not."""
    holders: dict[tuple[str, int], list[JobId]] = {}
    for job in snapshot.jobs:
        for share in job.shares:
            for index in share.indices:
                holders.setdefault((share.node, index), []).append(job.id)
    nodes = tuple(_node(node, holders) for node in snapshot.nodes)
    return Overview(snapshot.time, nodes, snapshot.cluster, snapshot.release, snapshot.oddities)


def _node(node: Node, holders: Mapping[tuple[str, int], list[JobId]]) -> NodeUse:
    gpus = tuple(
        GpuUse(gpu.index, gpu.type, gpu.used, tuple(holders.get((node.name, gpu.index), ()))) for gpu in node.gpus
    )
    partitions = tuple(sorted(node.partitions))
    return NodeUse(node.name, gpus, node.total, node.used, node.state, node.state_text, partitions, node.reason)
