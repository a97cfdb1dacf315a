"""The cluster GPU by GPU, the demand of a job on each node, and placements by least fragmentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from slurmsched.arrays import Mask
from slurmsched.model import (
    MILLI_PER_GPU,
    Job,
    Node,
    NodeAllocation,
    NodeState,
    Request,
    Reservation,
    Resources,
    Snapshot,
)
from slurmsched.model.reasons import pluralise
from slurmsched.policies.cluster.eligibility import parse_constraint
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import (
    FragmentationMeasure,
    FreeDevices,
    FreeNode,
    TargetWorkload,
    TaskDemand,
    workload_of_counts,
)
from slurmsched.policies.place.scores import NodeScoreTable, PricedFragmentationScore, SlurmDevice
from slurmsched.policies.stages import Situation

_MILLI_CPUS: Final = 1000
"""Milli-CPUs of a CPU."""

_DEFAULT_WORKLOAD: Final = TargetWorkload((TaskDemand(_MILLI_CPUS, 0, 1, MILLI_PER_GPU),), (1.0,))
"""The target workload before any request: a whole GPU with 1 CPU."""


@dataclass(frozen=True, slots=True)
class RepeatedTasks(Sequence[TaskDemand]):
    """A task for each node, as kinds and counts: a request for a million nodes needs no more memory than for two."""

    kinds: tuple[tuple[TaskDemand, int], ...]

    def __len__(self) -> int:
        return sum(count for _, count in self.kinds)

    @overload
    def __getitem__(self, index: int) -> TaskDemand: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TaskDemand]: ...
    def __getitem__(self, index: int | slice) -> TaskDemand | Sequence[TaskDemand]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        left = index if index >= 0 else index + len(self)
        for task, count in self.kinds:
            if 0 <= left < count:
                return task
            left -= count
        raise IndexError(index)


@dataclass(frozen=True, slots=True)
class NodeDemands:
    """The tasks of a job, each on a node of its own. `shards` are those of each task."""

    tasks: RepeatedTasks
    shards: int = 0


def node_demands(request: Request, shards_per_gpu: int) -> NodeDemands:
    """Return the tasks of a request on nodes whose GPUs have `shards_per_gpu` shards.

    Raises PolicyError if no such node can ever hold a task: the shards of a job are on one GPU of each node, and a job
    with GPUs has some on every node.
    """
    types = (request.gpu_type,) if request.gpu_type else ()
    if request.shards:
        nodes = max(request.nodes, 1)
        each = -(-request.shards // nodes)
        if not 0 < each <= shards_per_gpu:
            raise PolicyError(f"{each} shards of one GPU; the GPUs there have {shards_per_gpu}")
        task = _task(request, nodes, 1, MILLI_PER_GPU * each // shards_per_gpu, types)
        return NodeDemands(RepeatedTasks(((task, nodes),)), each)
    if request.gpus_per_node:
        nodes = max(1, -(-request.gpus // request.gpus_per_node))
        return NodeDemands(
            RepeatedTasks(((_task(request, nodes, request.gpus_per_node, MILLI_PER_GPU, types), nodes),))
        )
    nodes = max(request.nodes, 1)
    if 0 < request.gpus < nodes:
        raise PolicyError(f"{pluralise(request.gpus, 'GPU')} on {nodes} nodes: a job with GPUs needs one on every node")
    each, more = divmod(request.gpus, nodes)
    counts = [(each + 1, more), (each, nodes - more)] if more else [(each, nodes)]
    return NodeDemands(
        RepeatedTasks(
            tuple((_task(request, nodes, gpus, MILLI_PER_GPU if gpus else 0, types), n) for gpus, n in counts)
        )
    )


def _task(request: Request, nodes: int, gpus: int, milli: int, types: tuple[str, ...]) -> TaskDemand:
    """Return the task on each node: CPUs are divided by the nodes and rounded up, as in Slurm; memory is per node."""
    return TaskDemand(
        _MILLI_CPUS * -(-max(request.cpus, 1) // nodes), request.memory, gpus, milli, types if gpus else ()
    )


def target_workload(requests: Iterable[tuple[Request, int]], shards_per_gpu: int, nodes: int) -> TargetWorkload:
    """Return the target workload of requests, each with how often it occurred.

    Requests that fit nowhere are left out: more shards than a GPU has, or more nodes than there are.
    """
    counts = Counter[TaskDemand]()
    for request, occurrences in requests:
        try:
            tasks = node_demands(request, shards_per_gpu).tasks
        except PolicyError:
            continue
        if len(tasks) <= nodes:
            for task, count in tasks.kinds:
                counts[task] += count * occurrences
    return workload_of_counts(counts) if counts else _DEFAULT_WORKLOAD


@dataclass(slots=True)
class FgdCluster:
    """The nodes by index: their idle resources, GPU type, and shards per GPU (0 for none).

    The first of equal nodes is preferred, so nodes are sorted by idle milli-GPU, ascending.
    """

    snapshot: Snapshot
    open_nodes: Mapping[str, frozenset[str]]
    nodes: tuple[Node, ...] = field(init=False)
    free: FreeDevices = field(init=False)
    gpu_types: NDArray[np.str_] = field(init=False)
    shards_per_gpu: NDArray[np.int64] = field(init=False)
    _masks: dict[tuple[object, ...], Mask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = tuple(sorted(self.snapshot.nodes, key=_idle_milli_gpu))
        self.free = FreeDevices([_free_node(node) for node in self.nodes])
        self.gpu_types = np.array([next(iter(node.gpu_types), "") for node in self.nodes])
        self.shards_per_gpu = np.array(
            [min((gpu.shards for gpu in n.gpus), default=0) for n in self.nodes], dtype=np.int64
        )

    @property
    def max_shards_per_gpu(self) -> int:
        """The most shards that a GPU of the cluster has."""
        return int(self.shards_per_gpu.max()) if len(self.shards_per_gpu) else 0

    def eligible_nodes(self, job: Job) -> tuple[Mask, ...]:
        """Return a mask of nodes for each partition of the job, regardless of free resources.

        Raises PolicyError for an invalid constraint.
        """
        requested = self._requested_mask(job)
        masks = [requested & self._partition_mask(partition, job.reservation) for partition in job.partitions]
        return tuple(mask for mask in {mask.tobytes(): mask for mask in masks}.values() if mask.any())

    def candidates(self, job: Job) -> Iterator[tuple[NodeDemands, Mask]]:
        """Yield the job's demands and a mask of the nodes that may hold them.

        There is one for each partition; for a job with shards, for each number of shards per GPU; and for a job with
        GPUs on several nodes, for each GPU type. Raises PolicyError for an invalid constraint.
        """
        for eligible in self.eligible_nodes(job):
            counts = np.unique(self.shards_per_gpu[eligible])[::-1].tolist() if job.original_request.shards else [0]
            for shards in counts:
                try:
                    demands = node_demands(job.original_request, shards)
                except PolicyError:
                    continue  # these GPUs have too few shards; others may have enough
                nodes = eligible & (self.shards_per_gpu == shards) if shards else eligible
                yield from ((demands, of_type) for of_type in self._by_gpu_type(demands, nodes))

    def as_empty(self) -> FgdCluster:
        """Return the cluster with nothing on it, every node up and no reservation."""
        nodes = tuple(_empty_node(node) for node in self.snapshot.nodes)
        partitions = {name for node in nodes for name in node.partitions}
        open_nodes = {name: frozenset(node.name for node in nodes if name in node.partitions) for name in partitions}
        return FgdCluster(replace(self.snapshot, nodes=nodes, jobs=(), reservations=()), open_nodes)

    def _by_gpu_type(self, demands: NodeDemands, nodes: Mask) -> Iterable[Mask]:
        """Return the nodes: for a job with GPUs on several nodes by GPU type, that with the most idle GPUs first."""
        if len(demands.tasks) == 1 or not demands.tasks[0].gpus:
            return (nodes,)
        masks = [nodes & (self.gpu_types == kind) for kind in np.unique(self.gpu_types[nodes])]
        return sorted(masks, key=lambda mask: -int(self.free.milli_gpus[mask].sum()))

    def _requested_mask(self, job: Job) -> Mask:
        request = job.original_request
        key = (request.features, request.excluded, request.pinned, request.exclusive)
        if key not in self._masks:
            accepts = parse_constraint(request.features)
            self._masks[key] = self._mask(
                node.name not in request.excluded
                and (not request.pinned or node.name in request.pinned)
                and accepts(node.features)
                for node in self.nodes
            )
        if request.exclusive:
            whole = np.array([_MILLI_CPUS * node.total.cpus for node in self.nodes], dtype=np.int64)
            return np.asarray(self._masks[key] & (self.free.milli_cpu == whole), dtype=np.bool_)
        return self._masks[key]

    def _partition_mask(self, partition: str, reservation: str) -> Mask:
        key = (partition, reservation)
        if key not in self._masks:
            open_nodes = self.open_nodes.get(partition, frozenset())
            names = self._reserved_nodes(partition, reservation) if reservation else open_nodes
            self._masks[key] = self._mask(node.name in names for node in self.nodes)
        return self._masks[key]

    def _reserved_nodes(self, partition: str, reservation: str) -> frozenset[str]:
        active = Reservation.active(self.snapshot.reservations, self.snapshot.time)
        named = frozenset().union(*(r.nodes for r in active if r.name == reservation))
        up = {node.name for node in self.nodes if node.state is NodeState.UP and partition in node.partitions}
        return named & up

    @staticmethod
    def _mask(values: Iterable[bool]) -> Mask:
        return np.array(list(values), dtype=np.bool_)


def _free_node(node: Node) -> FreeNode:
    """Return the idle resources of a node: no CPUs or GPUs if these have several types, as Slurm chooses the type."""
    free, mixed_types = node.free, len(node.gpu_types) > 1
    return FreeNode(
        milli_cpu=0 if mixed_types else _MILLI_CPUS * max(free.cpus, 0),
        memory=max(free.memory, 0),
        milli_gpus=() if mixed_types else tuple(max(0, MILLI_PER_GPU - gpu.used) for gpu in node.gpus),
        gpu_type=next(iter(node.gpu_types), ""),
    )


def _idle_milli_gpu(node: Node) -> int:
    return sum(MILLI_PER_GPU - gpu.used for gpu in node.gpus)


def _empty_node(node: Node) -> Node:
    return replace(node, used=Resources(), gpus=tuple(replace(gpu, used=0) for gpu in node.gpus), state=NodeState.UP)


@dataclass(frozen=True, slots=True)
class FgdPlacer:
    """Places jobs by least fragmentation: the cluster and the scores of its nodes."""

    cluster: FgdCluster
    table: NodeScoreTable

    @classmethod
    def of_situation(cls, situation: Situation) -> FgdPlacer:
        """Return a placer on the cluster as it is. The target workload is the jobs of the last days and of now."""
        cluster = FgdCluster(situation.snapshot, situation.open_nodes)
        requests = (*situation.recent_requests, *((job.original_request, 1) for job in situation.jobs))
        measure = FragmentationMeasure(
            target_workload(requests, cluster.max_shards_per_gpu, len(cluster.nodes)), cluster.free
        )
        return cls(cluster, NodeScoreTable(cluster.free, SlurmDevice(PricedFragmentationScore(measure))))

    def place(self, job: Job) -> tuple[NodeAllocation, ...]:
        """Allocate the job and return its allocations; empty where it does not fit."""
        try:
            candidates = list(self.cluster.candidates(job))
        except PolicyError:
            return ()
        for demands, nodes in candidates:
            if allocations := self.place_gang(demands, nodes):
                return allocations
        return ()

    def place_gang(self, demands: NodeDemands, nodes: Mask) -> tuple[NodeAllocation, ...]:
        """Allocate each task on a node of its own, or none, and return the allocations."""
        left, placed = nodes.copy(), list[tuple[int, TaskDemand, tuple[int, ...]]]()
        for task in demands.tasks:
            placement = self.table.place(task, left)
            if placement is None:
                for node, taken, devices in placed:
                    self.cluster.free.release(node, taken, devices)
                return ()
            node, devices = placement
            placed.append((node, task, devices))
            left[node] = False
        return tuple(self.node_allocation(demands.shards, node, task, devices) for node, task, devices in placed)

    def node_allocation(self, shards: int, node: int, task: TaskDemand, devices: tuple[int, ...]) -> NodeAllocation:
        """Return a task's allocation as in the model. Its `indices` are the devices that Slurm should choose."""
        target_node = self.cluster.nodes[node]
        gpu_type = target_node.gpus[devices[0]].type if devices else ""
        resources = Resources(0 if shards else task.gpus, task.milli_cpu // _MILLI_CPUS, task.memory)
        return NodeAllocation(target_node.name, resources, gpu_type, devices, shards)
