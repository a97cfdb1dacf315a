"""What is in use, node by node: what `status` and `free` show without asking Slurm again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmsched.model.job import JobId
from slurmsched.model.node import Node, NodeState
from slurmsched.model.resources import Resources
from slurmsched.model.snapshot import Snapshot

__all__ = ["Fragments", "GpuUse", "NodeFragments", "NodeUse", "Overview", "survey"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One device: how much of it is taken, in milli-GPU, and by whom. `jobs` is empty where Slurm shows no indices."""

    index: int
    type: str
    used: int = 0
    jobs: tuple[JobId, ...] = ()
    shards: int = 0


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
class NodeFragments:
    """One node, or all: its idle GPUs, and the parts of them that the next job could not use, in the mean over what is
    usually asked for. `lost` is their sum without `no_gpu_asked`, which no placing could help. All in GPUs."""

    node: str
    idle: float
    lack_gpu: float
    lack_cpu: float
    lack_both: float
    other_type: float
    no_gpu_asked: float

    @property
    def lost(self) -> float:
        return self.lack_gpu + self.lack_cpu + self.lack_both + self.other_type

    @property
    def parts(self) -> tuple[float, ...]:
        """As a line of a table: idle, lost, and what of that lacks GPUs, CPUs, both, or is of another type."""
        return self.idle, self.lost, self.lack_gpu, self.lack_cpu, self.lack_both, self.other_type


@dataclass(frozen=True, slots=True)
class Fragments:
    """`sentence` says it for the usual job that could use least of what is idle; empty where nothing is lost."""

    all: NodeFragments
    nodes: tuple[NodeFragments, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster at `time` (unix seconds), nodes in the snapshot's order. Stored with each round as JSON."""

    time: float
    nodes: tuple[NodeUse, ...]
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = ()
    fragments: Fragments | None = None
    """None where nobody worked it out."""


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
        GpuUse(gpu.index, gpu.type, gpu.used, tuple(holders.get((node.name, gpu.index), ())), gpu.shards)
        for gpu in node.gpus
    )
    partitions = tuple(sorted(node.partitions))
    return NodeUse(node.name, gpus, node.total, node.used, node.state, node.state_text, partitions, node.reason)
