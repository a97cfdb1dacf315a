"""A place for a gang, and what it takes there."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import Resources, Share
from slurmsched.policies.allocating import Portion
from slurmsched.policies.allocating.portion import memory_on_node
from slurmsched.policies.gang import Gang
from slurmsched.policies.pools import Claim, Pools

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """`parts` of the gang in each of `pools`, each part with `portion`; `kind` is whose terms these are."""

    gang: Gang
    pools: tuple[int, ...]
    parts: tuple[int, ...]
    portion: Portion
    kind: int

    def claim(self, where: Pools) -> Claim:
        """All of it. A job that wants its nodes for itself takes every CPU and all memory there."""
        gpus = tuple(parts * self.gang.gpus for parts in self.parts)
        if self.gang.request.exclusive:
            whole = [where.node(pool).total for pool in self.pools]
            return Claim(self.pools, gpus, tuple(n.cpus for n in whole), tuple(n.memory for n in whole), alone=True)
        memory = memory_on_node(self.gang, self.portion, max(self.parts))
        cpus = tuple(parts * self.portion.cpus for parts in self.parts)
        return Claim(self.pools, gpus, cpus, (memory,) * len(self.pools))

    def shares(self, where: Pools) -> tuple[Share, ...]:
        """As the model says it."""
        claim = self.claim(where)
        return tuple(
            Share(where.node(pool).name, Resources(gpus, cpus, memory), where.types[pool])
            for pool, gpus, cpus, memory in zip(claim.pools, claim.gpus, claim.cpus, claim.memory, strict=True)
        )
