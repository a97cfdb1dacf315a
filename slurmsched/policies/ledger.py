"""What is free on every node, as vectors, and what is claimed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import Node, Share, Snapshot

__all__ = ["Claim", "Ints", "Kind", "Ledger", "Mask", "Pools"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes pools alike: the GPU type, and the whole node's GPUs, CPUs and MiB."""

    gpu_type: str
    gpus: int
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job takes of each pool it lies in. `alone` closes the nodes to everybody else."""

    pools: tuple[int, ...]
    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    memory: tuple[int, ...]
    alone: bool = False


class Pools:
    """The parts of the cluster that are placed on: the GPUs of one type on one node. They never change in a round.

    `node_of` gives each pool's node, by position in `nodes`; `kind_of` its kind, by position in `kinds`. `cpus` and
    `memory` are each node's whole.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(node for node in nodes if node.gpus)
        keys = [(at, gpu_type) for at, node in enumerate(self.nodes) for gpu_type in sorted(node.gpu_types)]
        self.types = tuple(gpu_type for _, gpu_type in keys)
        self.node_of: Ints = np.array([at for at, _ in keys], dtype=np.int64)
        self._by_name = {(self.nodes[at].name, gpu_type): pool for pool, (at, gpu_type) in enumerate(keys)}
        self._first = {self.nodes[at].name: pool for pool, (at, _) in reversed([*enumerate(keys)])}
        kinds = [_kind(self.nodes[at], gpu_type) for at, gpu_type in keys]
        self.kinds = tuple(dict.fromkeys(kinds))
        number = {kind: position for position, kind in enumerate(self.kinds)}
        self.kind_of: Ints = np.array([number[kind] for kind in kinds], dtype=np.int64)
        self.cpus: Ints = np.array([node.total.cpus for node in self.nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.total.memory for node in self.nodes], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.types)

    def node(self, pool: int) -> Node:
        return self.nodes[int(self.node_of[pool])]

    def kind(self, pool: int) -> Kind:
        return self.kinds[int(self.kind_of[pool])]

    def claim(self, shares: Iterable[Share], alone: bool = False) -> Claim:
        """What these shares take; those on nodes without GPUs are nobody's concern here."""
        known = [(pool, share.resources) for share in shares if (pool := self._pool(share)) is not None]
        return Claim(
            tuple(pool for pool, _ in known),
            tuple(taken.gpus for _, taken in known),
            tuple(taken.cpus for _, taken in known),
            tuple(taken.memory for _, taken in known),
            alone,
        )

    def _pool(self, share: Share) -> int | None:
        return self._by_name.get((share.node, share.gpu_type), self._first.get(share.node))


def _kind(node: Node, gpu_type: str) -> Kind:
    return Kind(gpu_type, len(node.gpus), node.total.cpus, node.total.memory)


@dataclass(slots=True)
class Ledger:
    """Free GPUs by pool, free CPUs and MiB by node, and how many jobs claim a node for themselves alone.

    Below zero means promised twice: nothing more fits there until something is refunded.
    """

    pools: Pools
    gpus: Ints
    cpus: Ints
    memory: Ints
    closed: Ints

    @classmethod
    def free(cls, snapshot: Snapshot) -> Ledger:
        """As the snapshot has it: devices that are wholly idle, and what no allocation holds."""
        ledger = cls.empty(Pools(snapshot.nodes))
        pools = ledger.pools
        for pool, gpu_type in enumerate(pools.types):
            ledger.gpus[pool] = sum(gpu.idle and gpu.type == gpu_type for gpu in pools.node(pool).gpus)
        ledger.cpus -= np.array([node.used.cpus for node in pools.nodes], dtype=np.int64)
        ledger.memory -= np.array([node.used.memory for node in pools.nodes], dtype=np.int64)
        for job in snapshot.jobs:
            if job.request.exclusive and job.shares:
                for pool in pools.claim(job.shares).pools:
                    ledger.closed[pools.node_of[pool]] += 1
        return ledger

    @classmethod
    def empty(cls, pools: Pools) -> Ledger:
        """The cluster with nothing on it."""
        types = enumerate(pools.types)
        gpus = [sum(gpu.type == gpu_type for gpu in pools.node(pool).gpus) for pool, gpu_type in types]
        return cls(
            pools,
            np.array(gpus, dtype=np.int64),
            pools.cpus.copy(),
            pools.memory.copy(),
            np.zeros(len(pools.nodes), dtype=np.int64),
        )

    @classmethod
    def nothing(cls, pools: Pools) -> Ledger:
        """Nothing free: the start of a sum of refunds."""
        by_pool, by_node = np.zeros(len(pools), dtype=np.int64), np.zeros(len(pools.nodes), dtype=np.int64)
        return cls(pools, by_pool, by_node, by_node.copy(), by_node.copy())

    def copy(self) -> Ledger:
        return Ledger(self.pools, self.gpus.copy(), self.cpus.copy(), self.memory.copy(), self.closed.copy())

    def plus(self, more: Ledger) -> Ledger:
        """What is free with so much more refunded."""
        return Ledger(
            self.pools,
            self.gpus + more.gpus,
            self.cpus + more.cpus,
            self.memory + more.memory,
            self.closed + more.closed,
        )

    def meet(self, other: Ledger) -> Ledger:
        """What is free in both."""
        return Ledger(
            self.pools,
            np.minimum(self.gpus, other.gpus),
            np.minimum(self.cpus, other.cpus),
            np.minimum(self.memory, other.memory),
            np.maximum(self.closed, other.closed),
        )

    def claim(self, claim: Claim) -> None:
        self._book(claim, -1)

    def refund(self, claim: Claim) -> None:
        self._book(claim, 1)

    def holds(self, claim: Claim) -> bool:
        """Whether all of it is free."""
        return all(
            self.gpus[pool] >= gpus
            and self.cpus[node := self.pools.node_of[pool]] >= cpus
            and self.memory[node] >= memory
            and not self.closed[node]
            for pool, gpus, cpus, memory in zip(claim.pools, claim.gpus, claim.cpus, claim.memory, strict=True)
        )

    def _book(self, claim: Claim, sign: int) -> None:
        for pool, gpus, cpus, memory in zip(claim.pools, claim.gpus, claim.cpus, claim.memory, strict=True):
            node = self.pools.node_of[pool]
            self.gpus[pool] += sign * gpus
            self.cpus[node] += sign * cpus
            self.memory[node] += sign * memory
            self.closed[node] -= sign * claim.alone
