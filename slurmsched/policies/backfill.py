"""Slurm's own scheduling, to compare with: priority order, first fit, EASY backfill, no preemption.

Source: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from slurmsched.model import Decision, Job
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.free import FreeResources
from slurmsched.policies.cluster.pools import Allocation
from slurmsched.policies.orders import SlurmPriority
from slurmsched.policies.place.placement import FIRST_FIT, NodeScore
from slurmsched.policies.reasons import explain
from slurmsched.policies.session import FailedRequestCache, Session
from slurmsched.policies.sizes import AsRequested, Sizing
from slurmsched.policies.stages import Order, Situation


@dataclass(frozen=True, slots=True)
class _BackfillReservation:
    """The latest start of the first job that does not fit, and the resources that are free beside it then."""

    start: float
    free_beside: FreeResources


@dataclass(frozen=True, slots=True)
class EasyBackfill:
    """EASY backfill: jobs start in order, as requested, on the first nodes that fit. For the first job that does not
    fit a start is reserved by the time limits of running jobs; later jobs start only where they do not delay it."""

    name: str = "slurm"
    order: Order = field(default_factory=SlurmPriority)
    sizing: Sizing = field(default_factory=AsRequested)
    node_score: NodeScore = FIRST_FIT

    def decide(self, situation: Situation) -> Decision:
        session, reservation, failed = (
            Session(situation, self.order, self.sizing, self.node_score),
            None,
            FailedRequestCache(),
        )
        for ranked in session.ranking:
            job = session.jobs[ranked.job]
            if not session.needs_placement(job):
                continue
            demand = session.demands.of(job)
            beyond = reservation is not None and situation.snapshot.time + _limit(job) > reservation.start
            if failed.contains((demand, beyond), session.eviction_epoch):
                continue
            free = (
                session.free_at_minimum.intersection(reservation.free_beside)
                if reservation and beyond
                else session.free_at_minimum
            )
            placement = session.find_placement(demand, DemandLevel.BEST, free)
            if placement is None:
                failed.add((demand, beyond))
                reservation = reservation or _reserve(session, demand)
                continue
            session.allocate(job, placement)
            if reservation and beyond:
                reservation.free_beside.allocate(placement.allocation(session.pools))
        targets, waiting = explain(session, self.order.name)
        return Decision(self.name, session.ranking, targets, waiting, session.victims, dict(situation.state))


def _reserve(session: Session, demand: ResourceDemand) -> _BackfillReservation | None:
    """Release jobs in the order of their expected ends until the gang fits; None where it never does."""
    free = session.free_at_minimum.copy()
    for end, allocation in sorted(_expected_ends(session), key=lambda entry: entry[0]):
        free.release(allocation)
        placement = session.find_placement(demand, DemandLevel.BEST, free)
        if placement is not None:
            free.allocate(placement.allocation(session.pools))
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
