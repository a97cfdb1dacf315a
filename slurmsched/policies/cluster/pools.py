"""What a round places on: the GPUs of one type on one node, and claims on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import Node, NodeAllocation

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PoolKind:
    """What makes pools alike: the GPU type, and the whole node's GPUs, CPUs and MiB."""

    gpu_type: str
    gpus: int
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job takes of each pool it lies in. `alone` closes the nodes to everybody else."""

    pools: tuple[int, ...]
    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    memory: tuple[int, ...]
    exclusive: bool = False

    def by_pool(self) -> dict[int, tuple[int, int, int]]:
        """GPUs, CPUs and MiB of each pool."""
        return dict(zip(self.pools, zip(self.gpus, self.cpus, self.memory, strict=True), strict=True))


class Pools:
    """The parts of the cluster that are placed on: the GPUs of one type on one node. They never change in a round.

    `node_of` gives each pool's node, by position in `nodes`; `kind_of` its kind, by position in `kinds`. `cpus` and
    `memory` are each node's whole.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(node for node in nodes if node.gpus)
        keys = [(at, gpu_type) for at, node in enumerate(self.nodes) for gpu_type in sorted(node.gpu_types)]
        self.gpu_types = tuple(gpu_type for _, gpu_type in keys)
        self.node_of: Ints = np.array([at for at, _ in keys], dtype=np.int64)
        self._by_node_and_type = {(self.nodes[at].name, gpu_type): pool for pool, (at, gpu_type) in enumerate(keys)}
        self._first_on_node = {self.nodes[at].name: pool for pool, (at, _) in reversed([*enumerate(keys)])}
        kinds = [_kind(self.nodes[at], gpu_type) for at, gpu_type in keys]
        self.kinds = tuple(dict.fromkeys(kinds))
        number = {kind: position for position, kind in enumerate(self.kinds)}
        self.kind_of: Ints = np.array([number[kind] for kind in kinds], dtype=np.int64)
        self.cpus: Ints = np.array([node.total.cpus for node in self.nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.total.memory for node in self.nodes], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.gpu_types)

    def node(self, pool: int) -> Node:
        return self.nodes[int(self.node_of[pool])]

    def kind(self, pool: int) -> PoolKind:
        return self.kinds[int(self.kind_of[pool])]

    def allocation(self, shares: Iterable[NodeAllocation], exclusive: bool = False) -> Allocation:
        """What these shares take; those on nodes without GPUs are nobody's concern here."""
        found = [(pool, share.resources) for share in shares if (pool := self._pool(share)) is not None]
        return Allocation(
            tuple(pool for pool, _ in found),
            tuple(taken.gpus for _, taken in found),
            tuple(taken.cpus for _, taken in found),
            tuple(taken.memory for _, taken in found),
            exclusive,
        )

    def _pool(self, share: NodeAllocation) -> int | None:
        return self._by_node_and_type.get((share.node, share.gpu_type), self._first_on_node.get(share.node))


def _kind(node: Node, gpu_type: str) -> PoolKind:
    return PoolKind(gpu_type, len(node.gpus), node.total.cpus, node.total.memory)
