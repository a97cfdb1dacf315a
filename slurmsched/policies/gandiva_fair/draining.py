"""Draining for gangs: where a gang is next and only slices that have begun are in its way, no slice begins that would
outlast them. On the slides all slices begin and end together; on Slurm they do not, and a gang would find its GPUs free
at once only by chance. Jobs whose slices are over run on until the gang can start: no GPU is idle for it. Where jobs
that cannot be preempted are in its way, no other such job begins there that ends after the gang's turn has come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.model import JobId, JobState, Reason, ReasonCode
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.gandiva_fair.problem import ScalarFreeResources
from slurmsched.policies.place.placement import NodeScore, PartDemand, Placement, find_placement
from slurmsched.policies.session import Session


@dataclass(frozen=True, slots=True)
class Drain:
    """The place that is drained for a gang; `until` its last slice is over, in unix seconds."""

    placement: Placement
    until: float
    pass_value: float
    """The gang's."""
    awaits_ends: bool = False
    """Whether it waits for jobs that cannot be preempted; `until` is by their time limits."""


@dataclass(frozen=True, slots=True)
class _SoonestFree(NodeScore):
    """The pools whose slices are over first; the first of equals."""

    until: Floats
    name: str = "slices that end first"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        return candidates[np.argsort(self.until[candidates], kind="stable")[:count]]


@dataclass(frozen=True, slots=True)
class _Leaving:
    """What running jobs give back, and by when all of a pool's have, in unix seconds."""

    until: Floats
    released: ScalarFreeResources

    @classmethod
    def none(cls, session: Session) -> _Leaving:
        until = np.full(len(session.pools), session.situation.snapshot.time)
        return cls(until, ScalarFreeResources.from_arrays(FreeResources.none(session.pools)))

    def add(self, held: Allocation, until: float, *, released: bool = True) -> None:
        """Count what a job holds until then; nothing of one that never leaves."""
        if isfinite(until):
            pools = list(held.pools)
            self.until[pools] = np.maximum(self.until[pools], until)
            if released:
                self.released.release(held)


class Drains:
    """The drains of one round. `passes` are as in `Entitlement`; the jobs in `may_leave` may be preempted now."""

    def __init__(self, session: Session, passes: Mapping[JobId, float], may_leave: Collection[JobId]) -> None:
        self._session, self._passes = session, passes
        self._now = session.situation.snapshot.time
        self._slices = _Leaving.none(session)
        """What the running jobs that may not leave now give back once their slices are over."""
        self._ends = _Leaving.none(session)
        """The same with what ends only by itself, managed or not, by its time limit."""
        for job, held in session.running.items():
            until = self._in_slice_until(job)
            self._slices.add(held, until, released=job not in may_leave)
            end = until if isfinite(until) else session.expected_end(session.jobs[job])
            self._ends.add(held, end, released=job not in may_leave)
        snapshot = session.situation.snapshot
        for other in (*snapshot.jobs_in_state(JobState.RUNNING), *snapshot.jobs_in_state(JobState.COMPLETING)):
            held = session.pools.held_by(other)
            if other.state is JobState.COMPLETING:
                self._slices.add(held, self._now)
            if other.state is JobState.COMPLETING or other.id not in session.jobs:
                self._ends.add(held, session.expected_end(other))
        self.of_job: dict[JobId, Drain] = {}
        self._of_pool: dict[int, Drain] = {}
        self._awaits_ends = False
        """Whether a gang waits for more than slices. No other does: it may be long."""

    def _in_slice_until(self, job: JobId) -> float:
        """Return from when the running job may be preempted, in unix seconds; infinite if it never may."""
        session, known = self._session, self._session.jobs[job]
        if known.state is not JobState.RUNNING or job in session.situation.unmovable:
            return inf
        until = self._now
        if job in session.situation.non_preemptible:
            until = session.situation.preemptible_from.get(job, inf)
        if job in session.entitlement.protected:
            until = max(until, self._now - known.run_time + session.entitlement.slices.get(job, inf))
        return until

    def drain_for(self, job: JobId, free: ScalarFreeResources, reserved: Ints) -> None:
        """Drain for a gang without a home, if it fits once slices are over, beside the GPUs that are reserved in each
        pool and what is drained for others; the first that does not, for what ends by itself too, which takes longer
        than the turns of those for whom GPUs are reserved.

        For an exclusive gang only if it asks for all GPUs of its nodes: it is charged for what it asks for, and others
        could not use the rest.
        """
        placement = self._place_after(self._slices, job, free, reserved)
        if placement is not None:
            self._add(job, placement, self._slices)
        elif not self._awaits_ends:
            placement = self._place_after(self._ends, job, free, np.zeros_like(reserved))
            if placement is not None:
                self._add(job, placement, self._ends)

    def _place_after(
        self, leaving: _Leaving, job: JobId, free: ScalarFreeResources, reserved: Ints
    ) -> Placement | None:
        exclusive = self._session.jobs[job].original_request.exclusive
        later = free.as_arrays(self._session.pools, leaving.released)
        later.gpus -= reserved
        later.gpus[list(self._of_pool)] = 0
        if exclusive:
            taken = reserved > 0
            taken[list(self._of_pool)] = True
            later.gpus[self._same_nodes(np.flatnonzero(taken))] = 0
        demand = self._session.demands.of(self._session.jobs[job])
        placement = find_placement(demand, DemandLevel.MINIMUM, later, _SoonestFree(leaving.until))
        return placement if placement is None or not exclusive or self._takes_all_gpus(placement) else None

    def _same_nodes(self, pools: Sequence[int] | Ints) -> Ints:
        """Return all pools of the nodes of these pools."""
        return self._session.pools.of_nodes(self._session.pools.node_of[list(pools)])

    def _takes_all_gpus(self, placement: Placement) -> bool:
        pools, gpus = self._session.pools, sum(placement.allocation(self._session.pools).gpus)
        return gpus == sum(len(pools.node(pool).gpus) for pool in placement.pools)

    def drain_home(self, job: JobId, free: ScalarFreeResources, placement: Placement) -> None:
        """Drain the gang's home, if it fits there once slices are over."""
        allocation = placement.allocation(self._session.pools)
        if placement.pools[0] not in self._of_pool and free.fits_with(self._slices.released, allocation):
            self._add(job, placement, self._slices)

    def _add(self, job: JobId, placement: Placement, leaving: _Leaving) -> None:
        exclusive = self._session.jobs[job].original_request.exclusive
        pools = self._same_nodes(placement.pools).tolist() if exclusive else list(placement.pools)
        until = float(leaving.until[pools].max())
        drain = self.of_job[job] = Drain(placement, until, self._passes[job], leaving is self._ends)
        self._of_pool.update(dict.fromkeys(pools, drain))
        self._awaits_ends |= drain.awaits_ends

    def pools_awaiting_ends(self) -> list[int]:
        """The pools in which a gang waits for jobs that cannot be preempted."""
        return [pool for pool, drain in self._of_pool.items() if drain.awaits_ends]

    def kept_out_pools(self, job: JobId) -> list[int]:
        """The pools in which the newcomer would delay a gang that comes before it."""
        return [pool for pool in self._of_pool if self.keeps_out(job, pool)]

    def keeps_out(self, job: JobId, pool: int) -> bool:
        """Whether the newcomer would delay a gang that comes before it in this pool, or that would before it ends."""
        drain, session = self._of_pool.get(pool), self._session
        if drain is None or job in self.of_job:
            return False
        ahead, stays = drain.pass_value - self._passes[job], job in session.situation.unmovable
        end = session.expected_end(session.jobs[job]) if stays else self._now + session.entitlement.slices.get(job, inf)
        if stays and drain.awaits_ends:
            return end - self._now >= ahead
        return ahead <= 0 and end > drain.until

    def reason(self, job: JobId) -> Reason:
        """Return why the gang waits: until when, for whom and where."""
        session, drain = self._session, self.of_job[job]
        pools = set(drain.placement.pools)
        there = [other for other, held in session.running.items() if not pools.isdisjoint(held.pools)]
        nodes = {session.pools.node(pool).name for pool in pools}
        if not there:  # what has the nodes is not managed
            there = [job.id for job in session.situation.snapshot.jobs if {*job.nodes} & nodes]
        if not there:
            return Reason(ReasonCode.FREED_NOW, {"nodes": ", ".join(sorted(nodes))})
        details: dict[str, str | int | float] = {
            "when": time_of_day(drain.until, self._now),
            "jobs": ", ".join(sorted(there)),
            "nodes": ", ".join(sorted(nodes)),
            "start": drain.until,
        }
        return Reason(ReasonCode.EXPECTED_START, details)
