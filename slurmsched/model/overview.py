"""What is in use, node by node: what `status` and `free` show without asking Slurm again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmsched.model.job import JobId
from slurmsched.model.node import Node, NodeState, Resources
from slurmsched.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One device: how much of it is taken, in milli-GPU, and by whom. `jobs` is empty where Slurm shows no indices."""

    index: int
    type: str
    used: int = 0
    jobs: tuple[JobId, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """One node: its devices, and what is taken of its GPUs, CPUs and memory (MiB)."""

    name: str
    gpus: tuple[GpuUsage, ...]
    total: Resources
    used: Resources
    state: NodeState = NodeState.UP
    state_text: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def free(self) -> Resources:
        return self.total - self.used

    def idle_gpus(self, gpu_type: str | None = None) -> int:
        """Whole idle GPUs, of one type or of any."""
        return sum(gpu.used == 0 and gpu_type in (None, gpu.type) for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class NodeFragmentation:
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
    def columns(self) -> tuple[float, ...]:
        """As a line of a table: idle, lost, and what of that lacks GPUs, CPUs, both, or is of another type."""
        return self.idle, self.lost, self.lack_gpu, self.lack_cpu, self.lack_both, self.other_type


@dataclass(frozen=True, slots=True)
class ClusterFragmentation:
    """`sentence` says it for the usual job that could use least of what is idle; empty where nothing is lost."""

    all: NodeFragmentation
    nodes: tuple[NodeFragmentation, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The cluster at `time` (unix seconds), nodes in the snapshot's order. Stored with each round as JSON."""

    time: float
    nodes: tuple[NodeUsage, ...]
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = ()
    fragments: ClusterFragmentation | None = None
    """None where nobody worked it out."""


def cluster_overview(snapshot: Snapshot) -> ClusterOverview:
    """What a snapshot shows of each node, every job counted, managed or not."""
    jobs_by_gpu: dict[tuple[str, int], list[JobId]] = {}
    for job in snapshot.jobs:
        for share in job.allocations:
            for index in share.indices:
                jobs_by_gpu.setdefault((share.node, index), []).append(job.id)
    nodes = tuple(_node_usage(node, jobs_by_gpu) for node in snapshot.nodes)
    return ClusterOverview(snapshot.time, nodes, snapshot.cluster, snapshot.release, snapshot.oddities)


def _node_usage(node: Node, jobs_by_gpu: Mapping[tuple[str, int], list[JobId]]) -> NodeUsage:
    gpus = tuple(
        GpuUsage(gpu.index, gpu.type, gpu.used, tuple(jobs_by_gpu.get((node.name, gpu.index), ())), gpu.shards)
        for gpu in node.gpus
    )
    partitions = tuple(sorted(node.partitions))
    return NodeUsage(node.name, gpus, node.total, node.used, node.state, node.state_text, partitions, node.reason)
