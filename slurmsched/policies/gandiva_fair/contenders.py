"""The jobs of a round as those who take turns, and what they can have where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState
from slurmsched.policies.allocating import Allocating
from slurmsched.policies.fitting import EmptyCluster
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing import Grounds, Level, Placement, Wish, Wishes
from slurmsched.policies.pools import Claim, Ints
from slurmsched.policies.protocol import Situation
from slurmsched.settings.definition import Tickets

__all__ = ["Arena", "Contender"]

_LEAST: Final = 1e-6


@dataclass(slots=True)
class Contender:
    """A job that takes turns. `lease` is what it has while it runs; `stays` where it cannot be sent away now.

    `tickets` are the GPUs that its part of its user's tickets stands for, `passed` the seconds of them it has had.
    `home` is the pool whose turns it takes; -1 for a job that is too wide for one node, or has none yet.
    """

    job: Job
    wish: Wish
    lease: Claim | None
    stays: bool
    narrow: bool
    size: int
    """GPUs."""
    home: int = -1
    tickets: float = 0.0
    passed: float = 0.0

    def slice(self, said: Tickets) -> float:
        """Seconds of its shortest slice."""
        return said.quantum if self.narrow else said.wide_quantum

    def stride(self, quantum: float) -> float:
        """How far a slice of so many seconds takes it."""
        return self.size * quantum / max(self.tickets, _LEAST)


class Arena:
    """What the round is held on: every pool with what it has for managed jobs, and who contends for it."""

    def __init__(self, situation: Situation, allocating: Allocating) -> None:
        self.situation = situation
        self.ledger = Ledger.free(situation.snapshot)
        self.pools = self.ledger.pools
        knowledge: Knowledge = situation.knowledge
        grounds = Grounds(self.pools, situation.snapshot, situation.usable)
        self.wishes = Wishes(self.pools, grounds, knowledge, allocating)
        self.empty = EmptyCluster(self.pools, situation.snapshot, knowledge, allocating)
        self.capacity = self.ledger.copy()
        """What there would be if no managed job ran."""
        self._homes: dict[Wish, Ints] = {}
        self._at_home: dict[Wish, frozenset[int]] = {}
        self._claims: dict[tuple[Wish, int], Claim] = {}
        self._types: dict[Wish, frozenset[str]] = {}
        here = (job for job in situation.jobs if job.state is not JobState.COMPLETING)
        self.contenders = [self._contender(job) for job in sorted(here, key=_first_come)]
        """In order of submission."""
        for one in self.contenders:
            if one.lease is not None:
                self.capacity.refund(one.lease)
        for one in self.contenders:
            self._settle(one)

    def _contender(self, job: Job) -> Contender:
        runs = bool(job.shares) and job.state in (JobState.RUNNING, JobState.SUSPENDED)
        lease = self.pools.claim(job.shares, alone=job.request.exclusive) if runs else None
        return Contender(job, self.wishes.of(job), lease, stays=False, narrow=False, size=max(job.request.gpus, 1))

    def _settle(self, one: Contender) -> None:
        """Where it runs there it is at home, whatever a new job of its kind could have."""
        said, job = self.situation.tickets, one.job
        if one.lease is None:
            one.narrow = bool(len(self.homes(one.wish)))
            return
        one.narrow = len(one.lease.pools) == 1 and not one.lease.alone
        one.home = one.lease.pools[0] if one.narrow else -1
        in_slice = job.run_time + self.situation.period / 2 < one.slice(said)  # to the nearest round
        one.stays = in_slice or job.id in self.situation.fixed or job.state is JobState.SUSPENDED

    def homes(self, wish: Wish) -> Ints:
        """The pools of which one is enough for such a job, with nobody else of ours there."""
        known = self._homes.get(wish)
        if known is None:
            known = self._homes[wish] = self._enough(wish)
        return known

    def at_home(self, wish: Wish, pool: int) -> bool:
        """Whether the pool is one of them."""
        known = self._at_home.get(wish)
        if known is None:
            known = self._at_home[wish] = frozenset(self.homes(wish).tolist())
        return pool in known

    def _enough(self, wish: Wish) -> Ints:
        gang, capacity = wish.gang, self.capacity
        if gang.fewest > 1 or gang.request.exclusive or len(wish.pinned) > 1 or not wish.options:
            return np.zeros(0, dtype=np.int64)
        node_of = self.pools.node_of
        found = np.zeros(len(self.pools), dtype=np.bool_)
        for option in wish.options:
            memory = np.maximum(option.memory[Level.LEAST] * gang.parts, gang.memory)
            found |= (
                option.mask
                & (capacity.gpus >= gang.parts * gang.gpus)
                & (capacity.cpus[node_of] >= option.cpus[Level.LEAST] * gang.parts)
                & (capacity.memory[node_of] >= memory)
                & (capacity.closed[node_of] == 0)
            )
        if wish.pinned:
            found &= node_of == wish.pinned[0]
        return np.flatnonzero(found)

    def placement(self, wish: Wish, pool: int) -> Placement:
        """All of the gang in this pool, on the least it accepts."""
        kind = int(self.pools.kind_of[pool])
        return Placement(wish.gang, (pool,), (wish.gang.parts,), wish.terms[kind].least, kind)

    def claim(self, one: Contender) -> Claim:
        """What it has, or would take at home."""
        if one.lease is not None:
            return one.lease
        key = (one.wish, one.home)
        claim = self._claims.get(key)
        if claim is None:
            claim = self._claims[key] = self.placement(one.wish, one.home).claim(self.pools)
        return claim

    def gpus_by_type(self) -> Mapping[str, float]:
        """GPUs that managed jobs may have, by type: on nodes where one may start, or has what it runs on. Of some types
        that may be none."""
        used = {pool for one in self.contenders if one.lease is not None for pool in one.lease.pools}
        open_nodes = frozenset().union(*self.situation.usable.values())
        found: dict[str, float] = {}
        for pool, (kind, gpus) in enumerate(zip(self.pools.types, self.capacity.gpus.tolist(), strict=True)):
            there = pool in used or self.pools.node(pool).name in open_nodes
            found[kind] = found.get(kind, 0.0) + (max(gpus, 0) if there else 0)
        return found

    def types_of(self, one: Contender) -> frozenset[str]:
        """The GPU types it may run on; none for a job that could never run."""
        known = self._types.get(one.wish)
        if known is None:
            known = self._types[one.wish] = frozenset(self.pools.types[pool] for pool in self._pools_of(one))
        return known | {self.pools.types[pool] for pool in one.lease.pools} if one.lease else known

    def _pools_of(self, one: Contender) -> Sequence[int]:
        homes: Sequence[int] = self.homes(one.wish).tolist()
        masks = [option.mask for option in (*one.wish.options, *one.wish.together)]
        if homes or not masks or self.empty.lacks(one.job):
            return homes
        return [pool for pool, open_to_it in enumerate(np.logical_or.reduce(masks).tolist()) if open_to_it]


def _first_come(job: Job) -> tuple[float, int, JobId]:
    number = job.id.partition("_")[0]
    return job.submit_time, int(number) if number.isdecimal() else 0, job.id
