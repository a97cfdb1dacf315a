"""Stride scheduling: plain (Waldspurger and Weihl, MIT/LCS/TM-528, 1995), gang-aware and split (Gandiva_fair,
EuroSys 2020, slides 7 to 10).

Split stride runs one central stride for gangs that need several nodes, then a local one in every pool. Backfill then
gives idle GPUs to the first waiting jobs that fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.place.placement import CONSOLIDATED, NodeScore, PartDemand, Placement, find_placement
from slurmsched.policies.session import FailedRequestCache, Session


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
class ScalarFreeResources:
    """`FreeResources` as lists of Python integers, which are much faster than arrays for single allocations."""

    gpus: list[int]
    cpus: list[int]
    memory: list[int]
    exclusive_jobs: list[int]
    node_of: list[int]

    @classmethod
    def from_arrays(cls, free: FreeResources) -> ScalarFreeResources:
        return cls(
            free.gpus.tolist(),
            free.cpus.tolist(),
            free.memory.tolist(),
            free.exclusive_jobs.tolist(),
            free.pools.node_of.tolist(),
        )

    def as_arrays(self, pools: Pools) -> FreeResources:
        """Return the same as arrays."""
        columns = (
            np.array(column, dtype=np.int64) for column in (self.gpus, self.cpus, self.memory, self.exclusive_jobs)
        )
        free = FreeResources.none(pools)
        free.gpus, free.cpus, free.memory, free.exclusive_jobs = columns
        return free

    def fits(self, allocation: Allocation) -> bool:
        """Return whether all of it is free."""
        for pool, gpus, cpus, memory in zip(
            allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True
        ):
            node = self.node_of[pool]
            if (
                self.gpus[pool] < gpus
                or self.cpus[node] < cpus
                or self.memory[node] < memory
                or self.exclusive_jobs[node]
            ):
                return False
        return True

    def allocate(self, allocation: Allocation) -> None:
        self._change(allocation, -1)

    def release(self, allocation: Allocation) -> None:
        self._change(allocation, 1)

    def _change(self, allocation: Allocation, sign: int) -> None:
        for pool, gpus, cpus, memory in zip(
            allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True
        ):
            node = self.node_of[pool]
            self.gpus[pool] += sign * gpus
            self.cpus[node] += sign * cpus
            self.memory[node] += sign * memory
            self.exclusive_jobs[node] -= sign * allocation.exclusive


@dataclass(slots=True)
class StrideSchedule:
    """The result of a stride round: running jobs that stay, jobs that start, and running jobs that are preempted, each
    with the first job that starts on its nodes.

    `blocked` are jobs that would start if more jobs were allowed to move.
    """

    kept: set[JobId] = field(default_factory=set)
    started: dict[JobId, Placement] = field(default_factory=dict)
    preempted: dict[JobId, JobId] = field(default_factory=dict)
    blocked: set[JobId] = field(default_factory=set)


class SplitStride:
    """Admission step of split stride: at the first newcomer all jobs of the session are scheduled, in order of pass.

    Jobs with a home queue there, jobs without one over all pools. Running jobs that a home has no place for stay where
    they disturb no job that starts; the others are evicted, and no more of them than may move. Of an entitlement
    without passes the ranks count.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._pools = session, session.pools
        self._homes, self._passes = session.entitlement.homes, session.entitlement.passes or session.rank_of
        self._planned = False
        self._placements: dict[tuple[ResourceDemand, int], tuple[Placement, Allocation]] = {}
        self._queue: tuple[JobId, ...] = ()
        self._running: tuple[JobId, ...] = ()

    def try_admit(self, job: Job) -> bool:
        if not self._planned:
            self._planned = True
            self._carry_out(self._plan())
        return job.id in self._session.placements

    def _carry_out(self, schedule: StrideSchedule) -> None:
        session, why_start = self._session, self._session.entitlement.why_start
        for victim, newcomer in schedule.preempted.items():
            session.evict(victim, session.jobs[newcomer])
        for job_id, placement in schedule.started.items():
            job = session.jobs[job_id]
            session.allocate(job, placement, why_start and why_start(job))
        for job_id in schedule.blocked if session.may_evict else ():
            why = Reason(ReasonCode.MOVES_SPENT, {"limit": session.situation.max_moves})
            session.set_waiting_reason(session.jobs[job_id], why)

    def _plan(self) -> StrideSchedule:
        """Return the schedule, with no more victims than may move.

        Where more would have to be preempted, the nodes with the largest difference of passes come first.
        """
        session = self._session
        out = session.placements.keys() | session.victims.keys() | session.entitlement.postponed.keys()
        jobs = session.situation.jobs
        out |= {job.id for job in jobs if job.state is JobState.COMPLETING or not job.original_request.gpus}
        self._queue = tuple(ranked.job for ranked in session.ranking if ranked.job not in out)
        self._running = tuple(job for job in self._queue if job in session.running)
        moves = session.moves_left if session.may_evict else 0
        schedule = self._schedule_round(frozenset(filter(session.is_preemptible, self._running)))
        if len(schedule.preempted) <= moves:
            return schedule
        wanted = schedule.started.keys()
        schedule = self._schedule_round(self._most_overdue(schedule, moves))
        schedule.blocked |= wanted - schedule.started.keys()
        return schedule

    def _schedule_round(self, may_leave: Collection[JobId]) -> StrideSchedule:
        session, homes = self._session, self._homes
        schedule, free = StrideSchedule(), ScalarFreeResources.from_arrays(session.free_at_minimum)
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
        running = self._session.running
        for job in queue:
            if free.gpus[pool] <= 0:
                return
            if job in running:
                if free.fits(running[job]):
                    free.allocate(running[job])
                    schedule.kept.add(job)
                continue
            placement, allocation = self._placement_in(pool, self._session.demands.of(self._session.jobs[job]))
            if free.fits(allocation):
                free.allocate(allocation)
                schedule.started[job] = placement

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
        unplaceable: set[ResourceDemand] = set()
        for job in wide:
            demand, held = session.demands.of(session.jobs[job]), session.running.get(job)
            if held is None and (demand in unplaceable or not demand.single_node):
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
            if session.jobs[job].original_request.exclusive:
                unreserved.gpus[reserved > 0] = 0
            placement = find_placement(demand, DemandLevel.MINIMUM, unreserved, CONSOLIDATED)
            if placement is None:
                unplaceable.add(demand)
            else:
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
        """Return at most `moves` of the jobs to preempt: all of a group of nodes or none, the most overdue first.

        Nodes are in one group if a starting or a preempted job spans them.
        """
        running, passes = self._session.running, self._passes
        node_of, group = self._pools.node_of, dict[int, int]()

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
        urgency = defaultdict[int, float](float)
        for victim, newcomer in schedule.preempted.items():
            root = join(running[victim].pools)
            groups[root].append(victim)
            urgency[root] = max(urgency[root], passes[victim] - passes[newcomer])
        chosen: list[JobId] = []
        for root in sorted(groups, key=lambda root: (-urgency[root], root)):
            if len(chosen) + len(groups[root]) <= moves:
                chosen += groups[root]
        return frozenset(chosen)


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
        demand = session.demands.of(job)
        if demand.gang.gpus_per_part > self._largest or self._failed.contains(demand, self._epoch):
            return False
        placement = session.find_placement(demand, DemandLevel.MINIMUM, session.free_at_minimum)
        if placement is None:
            self._failed.add(demand)
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
