"""Admits newcomers on free resources, or on those of completing jobs.

Source: Mohan et al. (Synergy, OSDI 2022), section 4.2, steps 1 and 2 of Synergy-Tune.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.place.placement import Placement
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
        placement = self._placement(job)
        if placement is None:
            return False
        session.allocate(job, placement)
        return True

    def _placement(self, job: Job) -> Placement | None:
        session = self.session
        return (
            session.find_placement(job, DemandLevel.BEST, session.free_as_planned)
            or session.find_placement(job, DemandLevel.MINIMUM, session.free_as_planned)
            or session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum)
        )


class AllocateFastestPart(AllocateFree):
    """Admits a newcomer as `AllocateFree` does, but one that asks for a part of a GPU, and whose rates on two types are
    known, on the fastest type that has room for it: for what the jobs with whole GPUs leave idle nobody else bids."""

    def _placement(self, job: Job) -> Placement | None:
        return _on_first_with_room(self.session, job, self._fastest_first(job)) or super()._placement(job)

    def _fastest_first(self, job: Job) -> Sequence[str]:
        """Return the GPU types, the fastest for the job first; none if it is no such job, or they are equally fast."""
        knowledge, types = self.session.situation.knowledge, self.session.pools.known_types
        if not (job.original_request.shards and knowledge.compares_types(job)):
            return ()
        rates = rates_of_part(knowledge, job, types)
        return sorted(types, key=lambda kind: -rates[kind]) if len(set(rates.values())) > 1 else ()


def _on_first_with_room(session: Session, job: Job, types: Iterable[str]) -> Placement | None:
    """Return the job's placement on the first of these GPU types that has room for it."""
    for kind in types:
        among = session.pools.of_type(kind)
        placement = session.find_placement(
            job, DemandLevel.BEST, session.free_as_planned, among
        ) or session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, among)
        if placement is not None:
            return placement
    return None


def has_part(job: Job) -> bool:
    """Return whether the job asks for a part of a GPU."""
    return bool(job.original_request.shards) and not job.original_request.gpus


def rates_of_part(knowledge: Knowledge, job: Job, types: Iterable[str]) -> Mapping[str, float]:
    """Return the rates on these types of a job that asks for a part of a GPU of any type; empty for other jobs, and
    where none is known."""
    of_any_type = has_part(job) and job.original_request.gpu_type is None
    return knowledge.rates_by_type(job, types, 1) if of_any_type else {}


_NEARLY_AS_FAST: Final = 0.5
"""Part of its rate on the type that it is due that a job has at least on another one, to start there instead."""


def start_on_other_type(session: Session) -> None:
    """Finish step: jobs that wait, though as many GPUs as they need are idle of the type that they are due, start on
    idle GPUs of another type that is nearly as fast for them, the fastest first.

    A market of GPUs does not see that these lack CPUs or memory. What is idle now all others have left.
    """
    due, failed = session.entitlement.gpu_types, set[tuple[Hashable, int]]()
    idle = session.free_at_minimum.idle_by_type() if due else Counter[str]()
    for ranked in session.ranking if len(+idle) > 1 else ():
        job, types = session.jobs[ranked.job], due.get(ranked.job, frozenset())
        if len(types) != 1 or job.id in session.running or not session.needs_placement(job):
            continue
        (kind,) = types
        if idle[kind] < job.gpus:
            continue
        attempt = session.attempt(job), id(session.situation.knowledge.rate_profile(job))
        if attempt in failed:
            continue
        if _start_on_fastest(session, job, kind, idle):
            idle = session.free_at_minimum.idle_by_type()
        else:
            failed.add(attempt)


def _start_on_fastest(session: Session, job: Job, due: str, idle: Mapping[str, int]) -> bool:
    """Place the job on the fastest other type that has room for it; return whether it is placed."""
    known = session.situation.knowledge.rates_by_type(job, idle, job.gpus)
    rates = {kind: known.get(kind, 1.0) for kind in idle}
    enough = [kind for kind in idle if kind != due and idle[kind] >= job.gpus]
    as_fast = [kind for kind in enough if rates[kind] >= _NEARLY_AS_FAST * rates[due]]
    if not as_fast:
        return False
    session.demands.lift_restriction(job)
    placement = _on_first_with_room(session, job, sorted(as_fast, key=lambda kind: -rates[kind]))
    if placement is None:
        session.demands.restrict(job)
        return False
    session.allocate(job, placement)
    return True


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
