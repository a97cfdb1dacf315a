"""What is in use on each node, and when jobs are expected to start: what is shown without asking Slurm again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.model.job import JobId
from slurmsched.model.node import Node, NodeState, Resources
from slurmsched.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU: how much of it is used, in milli-GPU, and by which jobs, if Slurm shows the indices."""

    index: int
    type: str
    used: int = 0
    jobs: tuple[JobId, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """One node: its GPUs, its resources and how much of them is used."""

    name: str
    gpus: tuple[GpuUsage, ...]
    total: Resources
    used: Resources
    state: NodeState = NodeState.UP
    state_text: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""
    reservation: str = ""
    """The active reservation that it is kept for; empty for none."""

    @property
    def free(self) -> Resources:
        return self.total - self.used

    def idle_gpus(self, gpu_type: str | None = None) -> int:
        """Returns the number of wholly idle GPUs, of one type or of any."""
        return sum(gpu.used == 0 and gpu_type in (None, gpu.type) for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class NodeFragmentation:
    """Fragmentation of one node, or of all, in GPUs: the idle ones, and how many of them a typical job cannot use, by
    cause. `lost` is the sum of the causes without `no_gpu_asked`, which no placement could change."""

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
        """The columns of a table: idle, lost, and the lost ones by cause (GPUs, CPUs, both, other type)."""
        return self.idle, self.lost, self.lack_gpu, self.lack_cpu, self.lack_both, self.other_type


@dataclass(frozen=True, slots=True)
class ClusterFragmentation:
    """`sentence` tells it for the typical job that can use least of the idle GPUs; empty if nothing is lost."""

    all: NodeFragmentation
    nodes: tuple[NodeFragmentation, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The cluster at `time` (unix seconds), with nodes in the snapshot's order; stored as JSON with each round."""

    time: float
    nodes: tuple[NodeUsage, ...]
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = ()
    fragments: ClusterFragmentation | None = None
    """None if it was not computed."""


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """A time in unix seconds: the median and the ends of the 80 % range; None where that is after the horizon."""

    low: float | None
    median: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a waiting job starts and when it ends, by so many `draws`, in `not_started` of which it did not start within
    the horizon."""

    job: JobId
    start: ExpectedTime
    end: ExpectedTime
    draws: int
    not_started: int


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """The forecasts of all jobs that waited `at` (unix seconds), in the order of their median starts.

    `left_out` are those of which nothing can be told, each with why. `remarks` are sentences on what is simulated in
    another way than it is. `until` is the horizon.
    """

    at: float
    until: float
    draws: int
    jobs: tuple[StartForecast, ...] = ()
    left_out: Mapping[JobId, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def cluster_overview(snapshot: Snapshot) -> ClusterOverview:
    """Returns the use of each node by all jobs of a snapshot, managed or not."""
    jobs_by_gpu: dict[tuple[str, int], list[JobId]] = {}
    for job in snapshot.jobs:
        for allocation in job.allocations:
            for index in allocation.indices:
                jobs_by_gpu.setdefault((allocation.node, index), []).append(job.id)
    nodes = tuple(_node_usage(node, jobs_by_gpu) for node in snapshot.nodes)
    return ClusterOverview(snapshot.time, nodes, snapshot.cluster, snapshot.release, snapshot.oddities)


def _node_usage(node: Node, jobs_by_gpu: Mapping[tuple[str, int], list[JobId]]) -> NodeUsage:
    gpus = tuple(
        GpuUsage(gpu.index, gpu.type, gpu.used, tuple(jobs_by_gpu.get((node.name, gpu.index), ())), gpu.shards)
        for gpu in node.gpus
    )
    partitions = tuple(sorted(node.partitions))
    return NodeUsage(
        node.name, gpus, node.total, node.used, node.state, node.state_text, partitions, node.reason, node.reservation
    )
