"""Preempts the fewest running jobs that rank clearly behind, the last first (as kueue: minimal preemptions)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from slurmsched.model import Job, JobId, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.free import FreeResources
from slurmsched.policies.cluster.pools import Ints
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import FailedRequestCache, Session


@dataclass(frozen=True, slots=True)
class VictimQueue:
    """`jobs`, the first to leave first. What the first k of them hold are the first `ends[k]` entries of the vectors,
    one entry for each pool a job lies in."""

    jobs: tuple[JobId, ...]
    ends: Ints
    pools: Ints
    gpus: Ints
    cpus: Ints
    memory: Ints
    exclusive: Ints

    @classmethod
    def of(cls, session: Session, jobs: Iterable[JobId]) -> VictimQueue:
        """Of these running jobs, the last in the order first."""
        last_first = tuple(sorted(jobs, key=lambda job: -session.rank_of[job]))
        claims = [session.allocation_of(job) for job in last_first]
        ends = np.cumsum([0, *(len(claim.pools) for claim in claims)])
        entries = [
            entry
            for allocation in claims
            for entry in zip(
                allocation.pools,
                allocation.gpus,
                allocation.cpus,
                allocation.memory,
                (allocation.exclusive,) * len(allocation.pools),
                strict=True,
            )
        ]
        columns = np.array(entries, dtype=np.int64).reshape(-1, 5).T
        return cls(last_first, ends, *columns)

    def free_without(self, count: int, free: FreeResources) -> FreeResources:
        """The ledger as it would be without the first `count` of them."""
        end, pools = int(self.ends[count]), free.pools
        nodes = pools.node_of[self.pools[:end]]
        refunded = FreeResources(
            pools,
            _summed(self.pools[:end], self.gpus[:end], len(pools)),
            _summed(nodes, self.cpus[:end], len(pools.nodes)),
            _summed(nodes, self.memory[:end], len(pools.nodes)),
            -_summed(nodes, self.exclusive[:end], len(pools.nodes)),
        )
        return free.plus(refunded)


def _summed(indices: Ints, amounts: Ints, length: int) -> Ints:
    return np.bincount(indices, weights=amounts, minlength=length).astype(np.int64)


@dataclass(slots=True)
class Preempt:
    """Displace the fewest running jobs that the newcomer outranks, the last in order first."""

    session: Session
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)
    _over_move_limit: FailedRequestCache = field(default_factory=FailedRequestCache)
    _queue: VictimQueue | None = None
    _epoch: int = -1

    def try_admit(self, job: Job) -> bool:
        session, demand = self.session, self.session.demands.of(job)
        queue = self._current_queue()
        behind = self._count_preemptible(job, queue)
        if not behind or self._failed.contains((demand, behind), session.eviction_epoch):
            return False
        over_limit = self._over_move_limit.contains((demand, behind), session.eviction_epoch)
        if not over_limit and self._placement_without(demand, queue, behind) is None:
            self._failed.add((demand, behind))
            return False
        found = None
        if session.moves_left and not over_limit:
            found = self._fewest_victims(job, demand, queue) or self._fewest_victims(
                job, demand, self._large_victims(job, queue)
            )
        if found is None:
            self._over_move_limit.add((demand, behind))
            session.set_waiting_reason(job, Reason(ReasonCode.MOVES_SPENT, {"limit": session.situation.max_moves}))
            return False
        victims, placement = found
        for victim in victims:
            session.evict(victim, job)
        session.allocate(job, placement)
        return True

    def _current_queue(self) -> VictimQueue:
        """All that may leave; worked out anew when one has left."""
        if self._queue is None or self._epoch != self.session.eviction_epoch:
            self._epoch = self.session.eviction_epoch
            running = (*self.session.running, *self.session.shrunk)
            self._queue = VictimQueue.of(self.session, filter(self.session.is_preemptible, running))
        return self._queue

    def _large_victims(self, job: Job, queue: VictimQueue) -> VictimQueue:
        """Those so large that the moves that are left might suffice."""
        least = -(-job.gpus // self.session.moves_left)
        return VictimQueue.of(self.session, (other for other in queue.jobs if self.session.jobs[other].gpus >= least))

    def _count_preemptible(self, job: Job, queue: VictimQueue) -> int:
        """How many of them, from the first to leave on, the newcomer outranks."""
        return bisect_left(
            queue.jobs, True, key=lambda other: not self.session.may_preempt(job, self.session.jobs[other])
        )

    def _placement_without(self, demand: ResourceDemand, queue: VictimQueue, count: int) -> Placement | None:
        return self.session.find_placement(
            demand, DemandLevel.MINIMUM, queue.free_without(count, self.session.free_at_minimum)
        )

    def _fewest_victims(
        self, job: Job, demand: ResourceDemand, queue: VictimQueue
    ) -> tuple[list[JobId], Placement] | None:
        """Victims and the place they leave; None where nothing fits or more would have to move than may."""
        behind = self._count_preemptible(job, queue)
        count = (
            bisect_left(range(1, behind + 1), True, key=lambda k: self._placement_without(demand, queue, k) is not None)
            + 1
        )
        placement = self._placement_without(demand, queue, count) if count <= behind else None
        if placement is None:
            return None
        victims = self._needed_victims(placement, queue, count)
        return (victims, placement) if len(victims) <= self.session.moves_left else None

    def _needed_victims(self, placement: Placement, queue: VictimQueue, count: int) -> list[JobId]:
        """Of the first `count`, those without which the place would not be free; the better their rank, the sooner
        they are spared."""
        session = self.session
        free, allocation = queue.free_without(count, session.free_at_minimum), placement.allocation(session.pools)
        node_of, needed = session.pools.node_of, list[JobId]()
        nodes = {int(node_of[pool]) for pool in placement.pools}
        for victim in reversed(queue.jobs[:count]):
            held = session.allocation_of(victim)
            if nodes.isdisjoint(int(node_of[pool]) for pool in held.pools):
                continue
            free.allocate(held)
            if not free.fits(allocation):
                free.release(held)
                needed.append(victim)
        return needed
