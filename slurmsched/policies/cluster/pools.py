"""Pools, which are the GPUs of one type on one node, and allocations on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import Node, NodeAllocation


@dataclass(frozen=True, slots=True)
class PoolKind:
    """What equal pools have in common: the GPU type, and the GPUs, CPUs and MiB of the whole node."""

    gpu_type: str
    gpus: int
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs, CPUs and MiB of a job in each of its pools. `exclusive` closes the nodes to all other jobs."""

    pools: tuple[int, ...]
    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    memory: tuple[int, ...]
    exclusive: bool = False

    def by_pool(self) -> dict[int, tuple[int, int, int]]:
        """Return GPUs, CPUs and MiB by pool."""
        return dict(zip(self.pools, zip(self.gpus, self.cpus, self.memory, strict=True), strict=True))


class Pools:
    """All pools of the cluster: the GPUs of one type on one node are a pool. They do not change during a round.

    `node_of` is each pool's node, as an index into `nodes`; `kind_of` its kind, as an index into `kinds`. `cpus` and
    `memory` (MiB) are the totals of each node.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(node for node in nodes if node.gpus)
        keys = [(index, gpu_type) for index, node in enumerate(self.nodes) for gpu_type in sorted(node.gpu_types)]
        self.gpu_types = tuple(gpu_type for _, gpu_type in keys)
        self.node_of: Ints = np.array([index for index, _ in keys], dtype=np.int64)
        self._by_node_and_type = {
            (self.nodes[index].name, gpu_type): pool for pool, (index, gpu_type) in enumerate(keys)
        }
        self._first_on_node = {self.nodes[index].name: pool for pool, (index, _) in reversed([*enumerate(keys)])}
        kinds = [_kind(self.nodes[index], gpu_type) for index, gpu_type in keys]
        self.kinds = tuple(dict.fromkeys(kinds))
        kind_index = {kind: index for index, kind in enumerate(self.kinds)}
        self.kind_of: Ints = np.array([kind_index[kind] for kind in kinds], dtype=np.int64)
        self.cpus: Ints = np.array([node.total.cpus for node in self.nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.total.memory for node in self.nodes], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.gpu_types)

    def node(self, pool: int) -> Node:
        return self.nodes[int(self.node_of[pool])]

    def kind(self, pool: int) -> PoolKind:
        return self.kinds[int(self.kind_of[pool])]

    def allocation(self, on_nodes: Iterable[NodeAllocation], exclusive: bool = False) -> Allocation:
        """Return the allocation by pool. Nodes without GPUs have no pool and are left out."""
        taken = [(pool, on_node.resources) for on_node in on_nodes if (pool := self._pool(on_node)) is not None]
        return Allocation(
            tuple(pool for pool, _ in taken),
            tuple(resources.gpus for _, resources in taken),
            tuple(resources.cpus for _, resources in taken),
            tuple(resources.memory for _, resources in taken),
            exclusive,
        )

    def _pool(self, on_node: NodeAllocation) -> int | None:
        return self._by_node_and_type.get((on_node.node, on_node.gpu_type), self._first_on_node.get(on_node.node))


def _kind(node: Node, gpu_type: str) -> PoolKind:
    return PoolKind(gpu_type, len(node.gpus), node.total.cpus, node.total.memory)
