"""The cluster as placing by fragments sees it, and which of its nodes are open to a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import MILLI, Job, Node, NodeState, Reservation, Resources, Snapshot
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.asking import Asking, asking
from slurmsched.policies.placing.features import constraint
from slurmsched.policies.placing.fragmentation import Idle, Server

__all__ = ["FragmentedCluster"]

Mask = NDArray[np.bool_]

_CORE = 1000


@dataclass(slots=True)
class FragmentedCluster:
    """Nodes by position, what is idle on them, the type of GPU there, and how many shards each has, 0 for none.

    Of equal nodes the first is taken, so they stand by how much of their GPUs is idle: none comes first.
    """

    snapshot: Snapshot
    open_nodes: Mapping[str, frozenset[str]]
    nodes: tuple[Node, ...] = field(init=False)
    idle: Idle = field(init=False)
    types: NDArray[np.str_] = field(init=False)
    shards: NDArray[np.int64] = field(init=False)
    _known: dict[tuple[object, ...], Mask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = tuple(sorted(self.snapshot.nodes, key=_idle))
        self.idle = Idle([_server(node) for node in self.nodes])
        self.types = np.array([next(iter(node.gpu_types), "") for node in self.nodes])
        self.shards = np.array([min((gpu.shards for gpu in n.gpus), default=0) for n in self.nodes], dtype=np.int64)

    @property
    def shards_per_gpu(self) -> int:
        """The most that a GPU here has."""
        return int(self.shards.max()) if len(self.shards) else 0

    def open_to(self, job: Job) -> tuple[Mask, ...]:
        """A mask of nodes for each partition that the job may run in, room aside. Raises PolicyError for a constraint
        that cannot be read."""
        wanted = self._asked(job)
        masks = [wanted & self._partition(partition, job.reservation) for partition in job.partitions]
        return tuple(mask for mask in {mask.tobytes(): mask for mask in masks}.values() if mask.any())

    def homes(self, job: Job) -> Iterator[tuple[Asking, Mask]]:
        """What the job asks for, and the nodes it may have it on: by partition, where it asks for shards by how many a
        GPU has, and by GPU type for a job of several nodes. Raises PolicyError for a constraint that cannot be read."""
        for ground in self.open_to(job):
            kinds = np.unique(self.shards[ground])[::-1].tolist() if job.request.shards else [0]
            for shards in kinds:
                try:
                    wanted = asking(job.request, shards)
                except PolicyError:
                    continue  # these GPUs have too few shards; others may have enough
                nodes = ground & (self.shards == shards) if shards else ground
                yield from ((wanted, alike) for alike in self._alike(wanted, nodes))

    def emptied(self) -> FragmentedCluster:
        """The same with nothing on it, every node up and no reservation."""
        nodes = tuple(_emptied(node) for node in self.snapshot.nodes)
        partitions = {name for node in nodes for name in node.partitions}
        everywhere = {name: frozenset(node.name for node in nodes if name in node.partitions) for name in partitions}
        return FragmentedCluster(replace(self.snapshot, nodes=nodes, jobs=(), reservations=()), everywhere)

    def _alike(self, wanted: Asking, nodes: Mask) -> Iterable[Mask]:
        """The nodes of each GPU type, where one job may not have several; that with the most idle GPUs first."""
        if len(wanted.tasks) == 1 or not wanted.tasks[0].gpus:
            return (nodes,)
        masks = [nodes & (self.types == kind) for kind in np.unique(self.types[nodes])]
        return sorted(masks, key=lambda mask: -int(self.idle.gpus[mask].sum()))

    def _asked(self, job: Job) -> Mask:
        request = job.request
        key = (request.features, request.excluded, request.pinned, request.exclusive)
        if key not in self._known:
            accepts = constraint(request.features)
            self._known[key] = self._mask(
                node.name not in request.excluded
                and (not request.pinned or node.name in request.pinned)
                and accepts(node.features)
                for node in self.nodes
            )
        if request.exclusive:
            whole = np.array([_CORE * node.total.cpus for node in self.nodes], dtype=np.int64)
            return np.asarray(self._known[key] & (self.idle.cpu == whole), dtype=np.bool_)
        return self._known[key]

    def _partition(self, partition: str, reservation: str) -> Mask:
        key = (partition, reservation)
        if key not in self._known:
            open_ones = self.open_nodes.get(partition, frozenset())
            names = self._reserved(partition, reservation) if reservation else open_ones
            self._known[key] = self._mask(node.name in names for node in self.nodes)
        return self._known[key]

    def _reserved(self, partition: str, reservation: str) -> frozenset[str]:
        active = Reservation.active(self.snapshot.reservations, self.snapshot.time)
        named = frozenset().union(*(own.nodes for own in active if own.name == reservation))
        up = {node.name for node in self.nodes if node.state is NodeState.UP and partition in node.partitions}
        return named & up

    @staticmethod
    def _mask(values: Iterable[bool]) -> Mask:
        return np.array(list(values), dtype=np.bool_)


def _server(node: Node) -> Server:
    """A node with GPUs of several types is closed: which of them Slurm would choose is not foreseen."""
    free, mixed = node.free, len(node.gpu_types) > 1
    return Server(
        cpu=0 if mixed else _CORE * max(free.cpus, 0),
        memory=max(free.memory, 0),
        gpus=() if mixed else tuple(max(0, MILLI - gpu.used) for gpu in node.gpus),
        gpu_type=next(iter(node.gpu_types), ""),
    )


def _idle(node: Node) -> int:
    return sum(MILLI - gpu.used for gpu in node.gpus)


def _emptied(node: Node) -> Node:
    return replace(node, used=Resources(), gpus=tuple(replace(gpu, used=0) for gpu in node.gpus), state=NodeState.UP)
