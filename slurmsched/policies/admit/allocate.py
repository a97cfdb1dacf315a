"""Admits newcomers on free resources, or on those of completing jobs.

Source: Mohan et al. (Synergy, OSDI 2022), section 4.2, steps 1 and 2 of Synergy-Tune.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.session import Session


class FailedRequestCache:
    """Requests that could not be placed since the last eviction.

    Free resources only shrink until a running job is evicted, so these requests need no second attempt before that.
    """

    def __init__(self) -> None:
        self._requests: set[Hashable] = set()
        self._epoch = 0

    def contains(self, request: Hashable, epoch: int) -> bool:
        """Whether the request failed in this epoch. A new `epoch` (`Session.eviction_epoch`) empties the cache."""
        if epoch != self._epoch:
            self._requests.clear()
            self._epoch = epoch
        return request in self._requests

    def add(self, request: Hashable) -> None:
        self._requests.add(request)


@dataclass(slots=True)
class AllocateFree:
    """Admits a newcomer with its best-case demand, else with the least it accepts, else with that where jobs
    placed this round are reduced to their least."""

    session: Session
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)

    def try_admit(self, job: Job) -> bool:
        session, attempt = self.session, self.session.attempt(job)
        if self._failed.contains(attempt, session.eviction_epoch):
            return False
        if not session.has_room(job, session.free_at_minimum):
            self._failed.add(attempt)
            return False
        placement = (
            session.find_placement(job, DemandLevel.BEST, session.free_as_planned)
            or session.find_placement(job, DemandLevel.MINIMUM, session.free_as_planned)
            or session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum)
        )
        if placement is None:
            return False
        session.allocate(job, placement)
        return True


@dataclass(slots=True)
class AllocateFastestPart:
    """Admits a newcomer that asks for a part of a GPU, and whose rates on two types are known, on the fastest type that
    has room for it: for what the jobs with whole GPUs leave idle nobody else bids."""

    session: Session
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)

    def try_admit(self, job: Job) -> bool:
        session = self.session
        if not (job.original_request.shards and session.situation.knowledge.compares_types(job)):
            return False
        types = session.pools.known_types
        attempt, rates = session.attempt(job), rates_of_part(session.situation.knowledge, job, types)
        if len(set(rates.values())) <= 1 or self._failed.contains(attempt, session.eviction_epoch):
            return False
        if not session.has_room(job, session.free_at_minimum):
            self._failed.add(attempt)
            return False
        for kind in sorted(types, key=lambda kind: -rates[kind]):
            among = np.array(session.pools.gpu_types) == kind
            for level, free in (
                (DemandLevel.BEST, session.free_as_planned),
                (DemandLevel.MINIMUM, session.free_at_minimum),
            ):
                placement = session.find_placement(job, level, free, among)
                if placement is not None:
                    session.allocate(job, placement)
                    return True
        return False


def rates_of_part(knowledge: Knowledge, job: Job, types: Iterable[str]) -> Mapping[str, float]:
    """Return the rates on these types of a job that asks for a part of a GPU of any type; empty for other jobs, and
    where none is known."""
    request = job.original_request
    of_any_type = request.shards and not request.gpus and request.gpu_type is None
    return knowledge.rates_by_type(job, types, 1) if of_any_type else {}


@dataclass(slots=True)
class WaitForCompleting:
    """Reserves resources of completing jobs for a newcomer, so that it preempts no job in the meantime."""

    session: Session
    _completing: tuple[Job, ...] = ()
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)

    def __post_init__(self) -> None:
        completing = self.session.situation.snapshot.jobs_in_state(JobState.COMPLETING)
        self._completing = tuple(job for job in completing if job.allocations)

    def try_admit(self, job: Job) -> bool:
        if not self._completing:
            return False
        session, attempt = self.session, self.session.attempt(job)
        if self._failed.contains(attempt, session.eviction_epoch):
            return False
        free_soon = session.free_at_minimum.copy()
        for other in self._completing:
            free_soon.release(session.pools.held_by(other))
        placement = session.find_placement(job, DemandLevel.MINIMUM, free_soon)
        if placement is None:
            self._failed.add(attempt)
            return False
        session.reserve(placement.with_devices(free_soon))
        nodes = sorted(session.pools.node(pool).name for pool in placement.pools)
        leaving = [other.id for other in self._completing if not set(nodes).isdisjoint(other.nodes)]
        session.set_waiting_reason(
            job, Reason(ReasonCode.FREED_SOON, {"jobs": ", ".join(leaving), "nodes": ", ".join(nodes)})
        )
        return True
