"""Stride scheduling: plain (Waldspurger and Weihl, MIT/LCS/TM-528, 1995), gang-aware and split (Gandiva_fair,
EuroSys 2020, slides 7 to 10).

Split stride runs one central stride for gangs that need several nodes, then a local one in every pool. Backfill then
gives idle GPUs to the first waiting jobs that fit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.policies.admit.allocate import FailedRequestCache
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.gandiva_fair.draining import Drains
from slurmsched.policies.gandiva_fair.problem import ScalarFreeResources
from slurmsched.policies.place.placement import CONSOLIDATED, NodeScore, PartDemand, Placement, find_placement
from slurmsched.policies.session import Session


@dataclass(frozen=True, slots=True)
class StrideJob:
    """A gang of `size` GPUs in a queue of stride scheduling. `tickets` are above zero."""

    job: JobId
    tickets: float
    size: int = 1

    @property
    def stride(self) -> float:
        """By how much one quantum advances its pass."""
        return self.size / self.tickets


def plain_stride(queue: Sequence[StrideJob], passes: MutableMapping[JobId, float]) -> JobId:
    """Return the job with the lowest pass, of any size, and advance its pass; ties go to the first in the queue."""
    job = min(queue, key=lambda job: passes[job.job])
    passes[job.job] += 1 / job.tickets
    return job.job


def gang_aware_stride(queue: Sequence[StrideJob], passes: MutableMapping[JobId, float], gpus: int) -> tuple[JobId, ...]:
    """Return the jobs that run for the next quantum on a server with `gpus` GPUs, and advance their passes.

    Jobs are taken in order of pass, ties in order of the queue; those that do not fit are skipped.
    """
    scheduled: list[JobId] = []
    for job in sorted(queue, key=lambda job: passes[job.job]):
        if job.size <= gpus:
            scheduled.append(job.job)
            gpus -= job.size
            passes[job.job] += job.stride
    return tuple(scheduled)


@dataclass(slots=True)
class StrideSchedule:
    """The result of a stride round: running jobs that stay, jobs that start, and running jobs that are preempted, each
    with the first job that starts on its nodes.

    `blocked` are jobs that would start if more jobs were allowed to move, `saving` those of them that need more moves
    than a round has, so that rounds save theirs.
    """

    drains: Drains
    kept: set[JobId] = field(default_factory=set)
    started: dict[JobId, Placement] = field(default_factory=dict)
    preempted: dict[JobId, JobId] = field(default_factory=dict)
    blocked: set[JobId] = field(default_factory=set)
    saving: set[JobId] = field(default_factory=set)


class SplitStride:
    """Admission step of split stride: at the first newcomer all jobs of the session are scheduled, in order of pass.

    Jobs with a home queue there, jobs without one over all pools. Running jobs that a home has no place for stay where
    they disturb no job that starts; the others are evicted, and no more of them than may move. Of an entitlement
    without passes the ranks count. The job whose promised start comes before all turns is scheduled by itself, before
    the others, which leave alone what it is promised.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._pools = session, session.pools
        self._homes, self._passes = session.entitlement.homes, session.entitlement.passes or session.rank_of
        self._planned = False
        self._placements: dict[tuple[ResourceDemand, int], tuple[Placement, Allocation]] = {}
        self._queue: tuple[JobId, ...] = ()
        self._running: tuple[JobId, ...] = ()
        self._beside: ScalarFreeResources | None = None
        """What is free beside the job that is promised a start, at that time."""

    def try_admit(self, job: Job) -> bool:
        if job.id in self._session.first and not self._planned:
            self._carry_out(self._plan(frozenset({job.id})))
        elif not self._planned:
            self._planned = True
            self._carry_out(self._plan())
        return job.id in self._session.placements

    def _carry_out(self, schedule: StrideSchedule) -> None:
        session, why_start = self._session, self._session.entitlement.why_start
        limits, stopped = session.limits.copy(), set[JobId]()
        for job_id, placement in schedule.started.items():
            if why := limits.reached(session.jobs[job_id]):
                session.set_waiting_reason(session.jobs[job_id], why)
                stopped.add(job_id)
            else:
                limits.charge(session.jobs[job_id], placement.allocation(session.pools), session.pools)
        session.moves_left = max(session.moves_left, len(schedule.preempted))
        for victim, newcomer in schedule.preempted.items():
            if newcomer not in stopped:
                session.evict(victim, session.jobs[newcomer])
        for job_id, placement in schedule.started.items():
            job = session.jobs[job_id]
            if job_id not in stopped:
                session.allocate(job, placement, why_start and why_start(job))
        self._reserve_drained(schedule)
        for job_id in schedule.blocked if session.may_evict else ():
            code = ReasonCode.MOVES_SAVED if job_id in schedule.saving else ReasonCode.MOVES_SPENT
            why = Reason(code, {"limit": session.situation.max_moves})
            session.set_waiting_reason(session.jobs[job_id], why)

    def _reserve_drained(self, schedule: StrideSchedule) -> None:
        """Reserve what is drained until slices are over; until jobs have ended, only from jobs that would stay."""
        session, drains = self._session, schedule.drains
        for job_id, drain in drains.of_job.items():
            if job_id not in schedule.started:
                if not drain.awaits_ends:
                    session.reserve(drain.placement)
                session.set_waiting_reason(session.jobs[job_id], drains.reason(job_id))
        session.awaited_pools = drains.pools_awaiting_ends()

    def _plan(self, only: Collection[JobId] = ()) -> StrideSchedule:
        """Return the schedule, with no more victims than may move; of newcomers with those in `only`, if there are any.

        Where more would have to be preempted, the nodes with the largest difference of passes come first.
        """
        session = self._session
        out = session.placements.keys() | session.victims.keys() | session.entitlement.postponed.keys()
        jobs = session.situation.jobs
        out |= {job.id for job in jobs if job.state is JobState.COMPLETING or not job.original_request.gpus}
        if only:
            out |= {job.id for job in jobs if job.id not in session.running and job.id not in only}
        out |= {job.id for job in jobs if job.state is JobState.PENDING and session.limits.reached(job)}
        self._queue = tuple(ranked.job for ranked in session.ranking if ranked.job not in out)
        self._running = tuple(job for job in self._queue if job in session.running)
        moves = session.moves_left if session.may_evict else 0
        schedule = self._schedule_round(frozenset(filter(session.is_preemptible, self._running)))
        if len(schedule.preempted) <= moves:
            return schedule
        wanted, victims = schedule.started.keys(), Counter(schedule.preempted.values())
        schedule = self._schedule_round(self._most_overdue(schedule, moves))
        schedule.blocked |= wanted - schedule.started.keys()
        schedule.saving |= {job for job in schedule.blocked if victims[job] > session.situation.max_moves > 0}
        return schedule

    def _schedule_round(self, may_leave: Collection[JobId]) -> StrideSchedule:
        session, homes = self._session, self._homes
        schedule = StrideSchedule(Drains(session, self._passes, may_leave))
        free = ScalarFreeResources.from_arrays(session.free_at_minimum)
        self._beside = ScalarFreeResources.from_arrays(session.promise.beside) if session.promise else None
        for job in may_leave:
            free.release(session.running[job])
        schedule.kept.update(job for job in self._running if job not in may_leave)
        preemptible = [job for job in self._queue if job not in schedule.kept]
        local = [job for job in preemptible if job in homes]
        self._central_stride([job for job in preemptible if job not in homes], local, free, schedule)
        by_pool = defaultdict[int, list[JobId]](list)
        for job in local:
            by_pool[homes[job]].append(job)
        for pool, jobs_of_pool in by_pool.items():
            self._local_stride(pool, jobs_of_pool, free, schedule)
        self._keep_undisturbed(free, schedule)
        return schedule

    def _local_stride(
        self, pool: int, queue: Iterable[JobId], free: ScalarFreeResources, schedule: StrideSchedule
    ) -> None:
        """Run gang-aware stride in one pool: in order of pass, each job that still fits."""
        running, drains = self._session.running, schedule.drains
        for job in queue:
            if free.gpus[pool] <= 0:
                return
            if job in running:
                if free.fits(running[job]):
                    free.allocate(running[job])
                    schedule.kept.add(job)
                continue
            if drains.keeps_out(job, pool):
                continue
            placement, allocation = self._placement_in(pool, self._session.demands.of(self._session.jobs[job]))
            if free.fits(allocation) and self._leaves_promise(job, allocation):
                free.allocate(allocation)
                schedule.started[job] = placement
            elif allocation.gpus[0] > 1:
                drains.drain_home(job, free, placement)

    def _leaves_promise(self, job: JobId, allocation: Allocation) -> bool:
        """Return whether the newcomer ends before the promised start, or takes what is free beside it, and count it."""
        if self._beside is None or not self._session.outlasts_promise(self._session.jobs[job]):
            return True
        if not self._beside.fits(allocation):
            return False
        self._beside.allocate(allocation)
        return True

    def _placement_in(self, pool: int, demand: ResourceDemand) -> tuple[Placement, Allocation]:
        """Return the placement of the whole gang in this pool, with the least it accepts, and its allocation."""
        known = self._placements.get((demand, pool))
        if known is None:
            kind = int(self._pools.kind_of[pool])
            least = Placement(demand.gang, (pool,), (demand.gang.parts,), demand.ranges[kind].minimum, kind)
            known = self._placements[demand, pool] = (least, least.allocation(self._pools))
        return known

    def _central_stride(
        self, wide: Sequence[JobId], local: Sequence[JobId], free: ScalarFreeResources, schedule: StrideSchedule
    ) -> None:
        """Run gang-aware stride for jobs without a home, on GPUs left by jobs with a home and a lower pass. They are
        consolidated whatever the policy's node score is: each node more has another queue that they disturb."""
        if not wide:
            return
        session, homes, passes = self._session, self._homes, self._passes
        pass_values = np.array([passes[job] for job in local])
        pool_indices = np.array([homes[job] for job in local], dtype=np.int64)
        sizes = np.array([max(session.jobs[job].original_request.gpus, 1) for job in local], dtype=np.float64)
        unplaceable = set[Hashable]()
        for job in wide:
            demand, held = session.demands.of(session.jobs[job]), session.running.get(job)
            if held is None and (session.attempt(session.jobs[job]) in unplaceable or not demand.single_node):
                continue
            first = int(np.searchsorted(pass_values, passes[job]))
            counted = np.bincount(pool_indices[:first], weights=sizes[:first], minlength=len(self._pools))
            reserved = counted.astype(np.int64)
            if held is not None:
                if free.fits(_with_reserved(held, reserved)):
                    free.allocate(held)
                    schedule.kept.add(job)
                continue
            unreserved = free.as_arrays(self._pools)
            unreserved.gpus -= reserved
            unreserved.gpus[schedule.drains.kept_out_pools(job)] = 0
            if session.jobs[job].original_request.exclusive:
                unreserved.gpus[reserved > 0] = 0
            if self._beside is not None and session.outlasts_promise(session.jobs[job]):
                unreserved = unreserved.intersection(self._beside.as_arrays(self._pools))
            placement = find_placement(demand, DemandLevel.MINIMUM, unreserved, CONSOLIDATED)
            if placement is None:
                unplaceable.add(session.attempt(session.jobs[job]))
                schedule.drains.drain_for(job, free, reserved)
            elif self._leaves_promise(job, placement.allocation(self._pools)):
                free.allocate(placement.allocation(self._pools))
                schedule.started[job] = placement

    def _keep_undisturbed(self, free: ScalarFreeResources, schedule: StrideSchedule) -> None:
        """Keep unscheduled running jobs where no started job needs their resources; preempts the others."""
        session, node_of, newcomers = self._session, self._pools.node_of, dict[int, JobId]()
        for job in sorted(schedule.started, key=session.rank_of.__getitem__):
            for pool in schedule.started[job].pools:
                newcomers.setdefault(int(node_of[pool]), job)
        for job in self._running:
            if job in schedule.kept:
                continue
            held = session.running[job]
            nodes = (int(node_of[pool]) for pool in held.pools)
            first = next((newcomers[node] for node in nodes if node in newcomers), None)
            if first is None or free.fits(held):
                free.allocate(held)
                schedule.kept.add(job)
            else:
                schedule.preempted[job] = first

    def _most_overdue(self, schedule: StrideSchedule, moves: int) -> frozenset[JobId]:
        """Return the jobs to preempt, at most `moves`: all of a group of nodes or none, the most overdue first.

        A group that is larger than a round's moves leaves once those that rounds left unused suffice with them; until
        then no less overdue group does.
        """
        passes, chosen, saved = self._passes, list[JobId](), self._session.entitlement.saved_moves

        def rank(group: list[JobId]) -> tuple[float, int]:
            ahead = max(passes[victim] - passes[schedule.preempted[victim]] for victim in group)
            return -ahead, self._session.rank_of[group[0]]

        for group in sorted(self._groups(schedule), key=rank):
            left = moves - len(chosen)
            if len(group) <= left:
                chosen += group
            elif 0 < self._session.situation.max_moves < len(group):
                if len(group) > left + saved:
                    break
                chosen += group
                saved -= len(group) - left
        return frozenset(chosen)

    def _groups(self, schedule: StrideSchedule) -> Iterable[list[JobId]]:
        """Return the jobs to preempt by groups of nodes: two are in one if a starting or a preempted job spans them."""
        running, node_of, group = self._session.running, self._pools.node_of, dict[int, int]()

        def group_of(node: int) -> int:
            while group.setdefault(node, node) != node:
                node = group[node]
            return node

        def join(pools: Iterable[int]) -> int:
            first, *others = [group_of(int(node_of[pool])) for pool in pools]
            for other in others:
                group[group_of(other)] = group_of(first)
            return group_of(first)

        for placement in schedule.started.values():
            join(placement.pools)
        for victim in schedule.preempted:
            join(running[victim].pools)
        groups = defaultdict[int, list[JobId]](list)
        for victim in schedule.preempted:
            groups[join(running[victim].pools)].append(victim)
        return groups.values()


def _with_reserved(allocation: Allocation, reserved: Ints) -> Allocation:
    """Return the allocation with the GPUs added that are reserved in its pools."""
    return replace(
        allocation,
        gpus=tuple(gpus + int(reserved[pool]) for pool, gpus in zip(allocation.pools, allocation.gpus, strict=True)),
    )


@dataclass(slots=True)
class FillIdle:
    """Admission step that gives GPUs that no turn takes to the first newcomers that fit. A job that was evicted in this
    round is left out: its turn is over."""

    session: Session
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)
    _epoch: int = -1
    _largest: int = 0
    """No pool has more free GPUs, as long as no running job is evicted."""

    def try_admit(self, job: Job) -> bool:
        session = self.session
        if self._epoch != session.eviction_epoch:
            self._epoch = session.eviction_epoch
            self._largest = int(session.free_at_minimum.gpus.max(initial=0))
        if job.id in session.victims or (self._largest <= 0 and job.original_request.gpus):
            return False
        demand, attempt = session.demands.of(job), session.attempt(job)
        if demand.gang.gpus_per_part > self._largest or self._failed.contains(attempt, self._epoch):
            return False
        stays = bool(session.awaited_pools) and job.id in session.situation.unmovable
        among = ~np.isin(np.arange(len(session.pools)), session.awaited_pools) if stays else None
        placement = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, among)
        if placement is None:
            if not stays:
                self._failed.add(attempt)
            return False
        session.allocate(job, placement, Reason(ReasonCode.FILLS_IN))
        self._largest = int(session.free_at_minimum.gpus.max(initial=0))
        return True


@dataclass(frozen=True, slots=True)
class _TightestByGpus(NodeScore):
    """The pool with the fewest free GPUs that are enough; the first of equals."""

    name: str = "fewest free GPUs that fit"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        return candidates[np.argsort(free.gpus[candidates], kind="stable")[:count]]


TIGHTEST_BY_GPUS: NodeScore = _TightestByGpus()
