"""What is free on every node, as vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmsched.model import Snapshot
from slurmsched.policies.pools import Claim, Ints, Pools

__all__ = ["Ledger"]


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
