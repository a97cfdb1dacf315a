"""What is left on the servers while turns are given out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmsched.policies.ledger import Ledger
from slurmsched.policies.pools import Claim, Pools

__all__ = ["Servers"]


@dataclass(slots=True)
class Servers:
    """A `Ledger` in Python numbers: for one claim at a time they beat arrays by far."""

    gpus: list[int]
    cpus: list[int]
    memory: list[int]
    closed: list[int]
    node_of: list[int]

    @classmethod
    def of(cls, ledger: Ledger) -> Servers:
        return cls(
            ledger.gpus.tolist(),
            ledger.cpus.tolist(),
            ledger.memory.tolist(),
            ledger.closed.tolist(),
            ledger.pools.node_of.tolist(),
        )

    def ledger(self, pools: Pools) -> Ledger:
        """The same as arrays."""
        columns = (np.array(column, dtype=np.int64) for column in (self.gpus, self.cpus, self.memory, self.closed))
        return Ledger(pools, *columns)

    def holds(self, claim: Claim) -> bool:
        """Whether all of it is free."""
        for pool, gpus, cpus, memory in zip(claim.pools, claim.gpus, claim.cpus, claim.memory, strict=True):
            node = self.node_of[pool]
            if self.gpus[pool] < gpus or self.cpus[node] < cpus or self.memory[node] < memory or self.closed[node]:
                return False
        return True

    def take(self, claim: Claim) -> None:
        for pool, gpus, cpus, memory in zip(claim.pools, claim.gpus, claim.cpus, claim.memory, strict=True):
            node = self.node_of[pool]
            self.gpus[pool] -= gpus
            self.cpus[node] -= cpus
            self.memory[node] -= memory
            self.closed[node] += claim.alone
