"""Stride scheduling: plain (Waldspurger and Weihl, MIT/LCS/TM-528, 1995), gang-aware and split (Gandiva_fair,
EuroSys 2020, slides 7 to 10).

Split stride runs one central stride for gangs that need several nodes, then a local one in every pool. Backfill then
gives idle GPUs to the first waiting jobs that fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import JobId
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.free import FreeResources
from slurmsched.policies.cluster.pools import Allocation, Pools
from slurmsched.policies.gandiva_fair.problem import RunnableJob, StrideProblem
from slurmsched.policies.place.placement import CONSOLIDATED, NodeScore, PartDemand, Placement, find_placement


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
    """Returns the job with the lowest pass, of any size, and advances its pass; ties go to the first in the queue."""
    job = min(queue, key=lambda job: passes[job.job])
    passes[job.job] += 1 / job.tickets
    return job.job


def gang_aware_stride(queue: Sequence[StrideJob], passes: MutableMapping[JobId, float], gpus: int) -> tuple[JobId, ...]:
    """Returns the jobs that run for the next quantum on a server with `gpus` GPUs, and advances their passes.

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
        """Returns the same as arrays."""
        columns = (
            np.array(column, dtype=np.int64) for column in (self.gpus, self.cpus, self.memory, self.exclusive_jobs)
        )
        free = FreeResources.none(pools)
        free.gpus, free.cpus, free.memory, free.exclusive_jobs = columns
        return free

    def fits(self, allocation: Allocation) -> bool:
        """Returns whether all of it is free."""
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
        for pool, gpus, cpus, memory in zip(
            allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True
        ):
            node = self.node_of[pool]
            self.gpus[pool] -= gpus
            self.cpus[node] -= cpus
            self.memory[node] -= memory
            self.exclusive_jobs[node] += allocation.exclusive


@dataclass(slots=True)
class StrideSchedule:
    """The result of a stride round: jobs that keep running, start, or are preempted, the last with the job that
    preempts them.

    `blocked` are jobs that would start if more jobs were allowed to move.
    """

    kept: dict[JobId, RunnableJob] = field(default_factory=dict)
    started: dict[JobId, tuple[RunnableJob, Placement]] = field(default_factory=dict)
    preempted: dict[JobId, tuple[RunnableJob, RunnableJob]] = field(default_factory=dict)
    blocked: set[JobId] = field(default_factory=set)


def split_stride(
    problem: StrideProblem, queue: Sequence[RunnableJob], moves: int
) -> tuple[StrideSchedule, ScalarFreeResources]:
    """Schedules the queue, which is in order of pass, and preempts at most `moves` running jobs.

    Where more would have to be preempted, the nodes with the largest difference of passes come first.
    """
    schedule, free = _schedule_round(
        problem,
        queue,
        frozenset(runnable.job.id for runnable in queue if runnable.allocation and not runnable.non_preemptible),
    )
    if len(schedule.preempted) <= moves:
        return schedule, free
    wanted = schedule.started.keys()
    schedule, free = _schedule_round(problem, queue, _most_overdue(problem, schedule, moves))
    schedule.blocked |= wanted - schedule.started.keys()
    return schedule, free


def _schedule_round(
    problem: StrideProblem, queue: Sequence[RunnableJob], may_leave: Collection[JobId]
) -> tuple[StrideSchedule, ScalarFreeResources]:
    schedule, free = StrideSchedule(), ScalarFreeResources.from_arrays(problem.capacity)
    for runnable in queue:
        if runnable.allocation is not None and runnable.job.id not in may_leave:
            free.allocate(runnable.allocation)
            schedule.kept[runnable.job.id] = runnable
    preemptible = [runnable for runnable in queue if runnable.job.id not in schedule.kept]
    local = [runnable for runnable in preemptible if runnable.is_local]
    _central_stride(problem, [runnable for runnable in preemptible if not runnable.is_local], local, free, schedule)
    by_pool = defaultdict[int, list[RunnableJob]](list)
    for runnable in local:
        by_pool[runnable.assigned_pool].append(runnable)
    for pool, jobs_of_pool in by_pool.items():
        _local_stride(problem, pool, jobs_of_pool, free, schedule)
    _keep_undisturbed(problem, queue, free, schedule)
    return schedule, free


def _local_stride(
    problem: StrideProblem, pool: int, queue: Iterable[RunnableJob], free: ScalarFreeResources, schedule: StrideSchedule
) -> None:
    """Runs gang-aware stride in one pool: in order of pass, each job that still fits."""
    for runnable in queue:
        if free.gpus[pool] <= 0:
            return
        allocation = problem.allocation_of(runnable)
        if free.fits(allocation):
            free.allocate(allocation)
            if runnable.allocation is not None:
                schedule.kept[runnable.job.id] = runnable
            else:
                schedule.started[runnable.job.id] = (runnable, problem.placement(runnable.demand, pool))


def _central_stride(
    problem: StrideProblem,
    wide: Sequence[RunnableJob],
    local: Sequence[RunnableJob],
    free: ScalarFreeResources,
    schedule: StrideSchedule,
) -> None:
    """Runs gang-aware stride for jobs that need several nodes, on GPUs left by local jobs with a lower pass."""
    if not wide:
        return
    pass_values = np.array([runnable.pass_value for runnable in local])
    pool_indices = np.array([runnable.assigned_pool for runnable in local], dtype=np.int64)
    sizes = np.array([runnable.size for runnable in local], dtype=np.float64)
    unplaceable: set[ResourceDemand] = set()
    for runnable in wide:
        if runnable.allocation is None and (runnable.demand in unplaceable or not runnable.demand.single_node):
            continue
        first = int(np.searchsorted(pass_values, runnable.pass_value))
        reserved = np.bincount(pool_indices[:first], weights=sizes[:first], minlength=len(problem.pools)).astype(
            np.int64
        )
        if runnable.allocation is not None:
            if free.fits(_with_reserved(runnable.allocation, reserved)):
                free.allocate(runnable.allocation)
                schedule.kept[runnable.job.id] = runnable
            continue
        unreserved = free.as_arrays(problem.pools)
        unreserved.gpus -= reserved
        if runnable.job.original_request.exclusive:
            unreserved.gpus[reserved > 0] = 0
        placement = find_placement(runnable.demand, DemandLevel.MINIMUM, unreserved, CONSOLIDATED)
        if placement is None:
            unplaceable.add(runnable.demand)
        else:
            free.allocate(placement.allocation(problem.pools))
            schedule.started[runnable.job.id] = (runnable, placement)


def _with_reserved(allocation: Allocation, reserved: Ints) -> Allocation:
    """Returns the allocation with the GPUs added that are reserved in its pools."""
    return replace(
        allocation,
        gpus=tuple(gpus + int(reserved[pool]) for pool, gpus in zip(allocation.pools, allocation.gpus, strict=True)),
    )


def _keep_undisturbed(
    problem: StrideProblem, queue: Sequence[RunnableJob], free: ScalarFreeResources, schedule: StrideSchedule
) -> None:
    """Keeps unscheduled running jobs where no started job needs their resources; preempts the others."""
    newcomer: dict[int, RunnableJob] = {}
    for runnable in queue:
        if runnable.job.id in schedule.started:
            for pool in schedule.started[runnable.job.id][1].pools:
                newcomer.setdefault(int(problem.pools.node_of[pool]), runnable)
    for runnable in queue:
        if runnable.allocation is None or runnable.job.id in schedule.kept:
            continue
        nodes = (int(problem.pools.node_of[pool]) for pool in runnable.allocation.pools)
        first = next((newcomer[node] for node in nodes if node in newcomer), None)
        if first is None or free.fits(runnable.allocation):
            free.allocate(runnable.allocation)
            schedule.kept[runnable.job.id] = runnable
        else:
            schedule.preempted[runnable.job.id] = (runnable, first)


def _most_overdue(problem: StrideProblem, schedule: StrideSchedule, moves: int) -> frozenset[JobId]:
    """Returns at most `moves` of the jobs to preempt: all of a group of nodes or none, the most overdue group first.

    Nodes are in one group if a starting or a preempted job spans them.
    """
    node_of, group = problem.pools.node_of, dict[int, int]()

    def group_of(node: int) -> int:
        while group.setdefault(node, node) != node:
            node = group[node]
        return node

    def join(pools: Iterable[int]) -> int:
        first, *others = [group_of(int(node_of[pool])) for pool in pools]
        for other in others:
            group[group_of(other)] = group_of(first)
        return group_of(first)

    for _, placement in schedule.started.values():
        join(placement.pools)
    for runnable, _ in schedule.preempted.values():
        join(runnable.allocation.pools if runnable.allocation else ())
    groups = defaultdict[int, list[JobId]](list)
    urgency = defaultdict[int, float](float)
    for job, (runnable, newcomer) in schedule.preempted.items():
        root = join(runnable.allocation.pools if runnable.allocation else ())
        groups[root].append(job)
        urgency[root] = max(urgency[root], runnable.pass_value - newcomer.pass_value)
    chosen: list[JobId] = []
    for root in sorted(groups, key=lambda root: (-urgency[root], root)):
        if len(chosen) + len(groups[root]) <= moves:
            chosen += groups[root]
    return frozenset(chosen)


@dataclass(frozen=True, slots=True)
class _FastestTypeFirst(NodeScore):
    """Prefers the fastest type with enough free GPUs (slide 11), then the node with the fewest free GPUs."""

    speed_rank: Ints
    """By pool; 0 for the fastest type."""
    name: str = "fastest type with free GPUs"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        return candidates[np.lexsort((free.gpus[candidates], self.speed_rank[candidates]))[:count]]


def backfill(
    problem: StrideProblem,
    waiting: Iterable[RunnableJob],
    servers_free: ScalarFreeResources,
    fastest_first: tuple[str, ...],
) -> Mapping[JobId, Placement]:
    """Returns placements, in order, for the waiting jobs that fit into what is left."""
    ranks = {gpu_type: rank for rank, gpu_type in enumerate(fastest_first)}
    node_score = _FastestTypeFirst(np.array([ranks[gpu_type] for gpu_type in problem.pools.gpu_types], dtype=np.int64))
    free, placements, unplaceable = (
        servers_free.as_arrays(problem.pools),
        dict[JobId, Placement](),
        set[ResourceDemand](),
    )
    largest = int(free.gpus.max(initial=0))
    for runnable in waiting:
        if largest <= 0:
            break
        if (
            runnable.demand in unplaceable
            or not runnable.demand.single_node
            or runnable.demand.gang.gpus_per_part > largest
        ):
            continue
        placement = find_placement(runnable.demand, DemandLevel.MINIMUM, free, node_score)
        if placement is None:
            unplaceable.add(runnable.demand)
            continue
        free.allocate(placement.allocation(problem.pools))
        placements[runnable.job.id] = placement
        largest = int(free.gpus.max(initial=0))
    return placements
