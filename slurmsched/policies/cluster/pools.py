"""Pools, which are the GPUs of one type on one node, and allocations on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import MILLI_PER_GPU, Gpu, Node, NodeAllocation


@dataclass(frozen=True, slots=True)
class PoolKind:
    """What equal pools have in common: the GPU type, the GPUs, CPUs and MiB of the whole node, and shards per GPU."""

    gpu_type: str
    gpus: int
    cpus: int
    memory: int
    shards: int = 0

    def milli_of_shards(self, shards: int) -> int:
        """Return the milli-GPU of so many shards of one GPU; 0 where the GPUs have no shards."""
        return MILLI_PER_GPU * shards // self.shards if self.shards else 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs, CPUs and MiB of a job in each of its pools. `exclusive` closes the nodes to all other jobs.

    A job with shards has no whole GPU, but `part` milli-GPU of one device of each pool. `devices` are the positions in
    each pool of its devices; empty where they are not known.
    """

    pools: tuple[int, ...]
    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    memory: tuple[int, ...]
    exclusive: bool = False
    part: int = 0
    devices: tuple[tuple[int, ...], ...] = ()

    def by_pool(self) -> dict[int, tuple[int, int, int]]:
        """Return GPUs, CPUs and MiB by pool."""
        return dict(zip(self.pools, zip(self.gpus, self.cpus, self.memory, strict=True), strict=True))


class Pools:
    """All pools of the cluster: the GPUs of one type on one node are a pool. They do not change during a round.

    A node without GPUs is a pool too, of type "". `node_of` is each pool's node, as an index into `nodes`; `kind_of`
    its kind, as an index into `kinds`. `cpus` and `memory` (MiB) are the totals of each node, `device_count` and
    `shards` the GPUs of each pool and the shards of each of these.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)
        keys = [
            (index, gpu_type) for index, node in enumerate(self.nodes) for gpu_type in sorted(node.gpu_types) or [""]
        ]
        self.gpu_types = tuple(gpu_type for _, gpu_type in keys)
        self.node_of: Ints = np.array([index for index, _ in keys], dtype=np.int64)
        self._by_node_and_type = {
            (self.nodes[index].name, gpu_type): pool for pool, (index, gpu_type) in enumerate(keys)
        }
        self._first_on_node = {self.nodes[index].name: pool for pool, (index, _) in reversed([*enumerate(keys)])}
        self.devices = tuple(_devices(self.nodes[index], gpu_type) for index, gpu_type in keys)
        """The GPUs of each pool by index."""
        kinds = [
            _kind(self.nodes[index], gpu_type, gpus) for (index, gpu_type), gpus in zip(keys, self.devices, strict=True)
        ]
        self.kinds = tuple(dict.fromkeys(kinds))
        kind_index = {kind: index for index, kind in enumerate(self.kinds)}
        self.kind_of: Ints = np.array([kind_index[kind] for kind in kinds], dtype=np.int64)
        self.cpus: Ints = np.array([node.total.cpus for node in self.nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.total.memory for node in self.nodes], dtype=np.int64)
        self.device_count: Ints = np.array([len(gpus) for gpus in self.devices], dtype=np.int64)
        self.shards: Ints = np.array([kind.shards for kind in kinds], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.gpu_types)

    @property
    def known_types(self) -> tuple[str, ...]:
        """The GPU types that there are, in the order of their first pools."""
        return tuple(dict.fromkeys(kind for kind in self.gpu_types if kind))

    @property
    def first_on_node(self) -> Mask:
        """The first pool of each node: a job without GPUs is placed there; [pools]."""
        return np.diff(self.node_of, prepend=-1) > 0

    @property
    def on_single_type_node(self) -> Mask:
        """The pools of nodes with GPUs of one type; [pools]."""
        return np.asarray((np.bincount(self.node_of, minlength=len(self.nodes)) == 1)[self.node_of], dtype=np.bool_)

    def node(self, pool: int) -> Node:
        return self.nodes[int(self.node_of[pool])]

    def kind(self, pool: int) -> PoolKind:
        return self.kinds[int(self.kind_of[pool])]

    def allocation(self, on_nodes: Iterable[NodeAllocation], exclusive: bool = False) -> Allocation:
        """Return the allocation by pool. Nodes that are not in the snapshot are left out.

        The devices are known where GPUs have shards and Slurm says which ones the job has.
        """
        taken = [(pool, on_node) for on_node in on_nodes if (pool := self._pool(on_node)) is not None]
        devices = [self._positions(pool, on_node) for pool, on_node in taken]
        known = tuple(held for held in devices if held is not None)
        parts = [self.kind(pool).milli_of_shards(on_node.shards) for pool, on_node in taken if on_node.shards]
        return Allocation(
            tuple(pool for pool, _ in taken),
            tuple(on_node.resources.gpus for _, on_node in taken),
            tuple(on_node.resources.cpus for _, on_node in taken),
            tuple(on_node.resources.memory for _, on_node in taken),
            exclusive,
            parts[0] if parts else 0,
            known if any(known) and len(known) == len(devices) else (),
        )

    def _pool(self, on_node: NodeAllocation) -> int | None:
        return self._by_node_and_type.get((on_node.node, on_node.gpu_type), self._first_on_node.get(on_node.node))

    def _positions(self, pool: int, on_node: NodeAllocation) -> tuple[int, ...] | None:
        """Return the positions of the job's devices in the pool; None where they are not all known."""
        gpus = 1 if on_node.shards else on_node.resources.gpus
        if not self.shards[pool]:
            return None if gpus else ()
        held = tuple(at for at, gpu in enumerate(self.devices[pool]) if gpu.index in on_node.indices)
        return held if len(held) == gpus else None


def _devices(node: Node, gpu_type: str) -> tuple[Gpu, ...]:
    return tuple(sorted((gpu for gpu in node.gpus if gpu.type == gpu_type), key=lambda gpu: gpu.index))


def _kind(node: Node, gpu_type: str, gpus: tuple[Gpu, ...]) -> PoolKind:
    return PoolKind(
        gpu_type, len(node.gpus), node.total.cpus, node.total.memory, min((gpu.shards for gpu in gpus), default=0)
    )
