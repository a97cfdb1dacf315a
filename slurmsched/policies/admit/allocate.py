"""Admits newcomers on free resources, on those of completing jobs, or as Slurm does, with EASY backfill.

Sources: Mohan et al. (Synergy, OSDI 2022), section 4.2, steps 1 and 2 of Synergy-Tune; Lifka, "The ANL/IBM SP
Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from slurmsched.model import Job, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.session import FailedRequestCache, Session


@dataclass(slots=True)
class AllocateFree:
    """Admits a newcomer with its best-case demand, else with the least it accepts, else with that where jobs
    placed this round are reduced to their least."""

    session: Session
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)

    def try_admit(self, job: Job) -> bool:
        session, demand = self.session, self.session.demands.of(job)
        if self._failed.contains(demand, session.eviction_epoch):
            return False
        last_resort = session.find_placement(demand, DemandLevel.MINIMUM, session.free_at_minimum)
        if last_resort is None:
            self._failed.add(demand)
            return False
        session.allocate(
            job,
            session.find_placement(demand, DemandLevel.BEST, session.free_as_planned)
            or session.find_placement(demand, DemandLevel.MINIMUM, session.free_as_planned)
            or last_resort,
        )
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
        session, demand = self.session, self.session.demands.of(job)
        if not self._completing or self._failed.contains(demand, session.eviction_epoch):
            return False
        free_soon = session.free_at_minimum.copy()
        for other in self._completing:
            free_soon.release(session.pools.allocation(other.allocations, exclusive=other.original_request.exclusive))
        placement = session.find_placement(demand, DemandLevel.MINIMUM, free_soon)
        if placement is None:
            self._failed.add(demand)
            return False
        session.reserve(placement.with_devices(free_soon))
        nodes = sorted(session.pools.node(pool).name for pool in placement.pools)
        leaving = [other.id for other in self._completing if not set(nodes).isdisjoint(other.nodes)]
        session.set_waiting_reason(
            job, Reason(ReasonCode.FREED_SOON, {"jobs": ", ".join(leaving), "nodes": ", ".join(nodes)})
        )
        return True


@dataclass(frozen=True, slots=True)
class _BackfillReservation:
    """The latest start of the first job that does not fit, and the resources that are free beside it then."""

    start: float
    free_beside: FreeResources


@dataclass(slots=True)
class EasyBackfill:
    """Admission step of EASY backfill: jobs start in order on the first nodes that fit. For the first job that does not
    fit a start is reserved by the time limits of running jobs; later jobs start only where they do not delay it."""

    session: Session
    _reservation: _BackfillReservation | None = None
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)

    def try_admit(self, job: Job) -> bool:
        session, reservation, demand = self.session, self._reservation, self.session.demands.of(job)
        beyond = reservation is not None and session.situation.snapshot.time + _limit(job) > reservation.start
        if self._failed.contains((demand, beyond), session.eviction_epoch):
            return False
        free = session.free_at_minimum
        if reservation and beyond:
            free = free.intersection(reservation.free_beside)
        placement = session.find_placement(demand, DemandLevel.BEST, free)
        if placement is None:
            self._failed.add((demand, beyond))
            self._reservation = reservation or _reserve(session, demand)
            return False
        session.allocate(job, placement)
        if reservation and beyond:
            reservation.free_beside.allocate(session.placements[job.id].allocation(session.pools))
        return True


def _reserve(session: Session, demand: ResourceDemand) -> _BackfillReservation | None:
    """Release jobs in the order of their expected ends until the gang fits; None where it never does."""
    free = session.free_at_minimum.copy()
    for end, held in sorted(_expected_ends(session), key=lambda entry: entry[0]):
        free.release(held)
        placement = session.find_placement(demand, DemandLevel.BEST, free)
        if placement is not None:
            free.allocate(placement.with_devices(free).allocation(session.pools))
            return _BackfillReservation(end, free)
    return None


def _expected_ends(session: Session) -> Iterator[tuple[float, Allocation]]:
    """Yield the latest end, in unix seconds, of each job that has an allocation or was placed in this round."""
    for job in session.situation.snapshot.jobs:
        if job.allocations:
            end = job.end_time if job.end_time is not None else (job.start_time or 0.0) + _limit(job)
            yield end, session.pools.allocation(job.allocations, exclusive=job.original_request.exclusive)
    for job_id, placement in session.placements.items():
        yield session.situation.snapshot.time + _limit(session.jobs[job_id]), placement.allocation(session.pools)


def _limit(job: Job) -> float:
    return inf if job.time_limit is None else job.time_limit
