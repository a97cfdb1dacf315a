"""Stride scheduling, plain and for gangs (Gandiva_fair, slides 7 and 8).

The plain one is Waldspurger and Weihl's (MIT/LCS/TM-528, 1995).

What is left on the servers while turns are given out.

Whose turn it is: the central stride for gangs wider than a server, then one on every server (slides 9 and 10).

GPUs that nobody at home there can use go to whoever comes first and fits: no turn is needed for what is idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.model import JobId
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.free import FreeResources
from slurmsched.policies.cluster.pools import Allocation, Ints, Pools
from slurmsched.policies.gandiva_fair.problem import RunnableJob, StrideProblem
from slurmsched.policies.place.placement import CONSOLIDATED, Placement, find_placement


@dataclass(frozen=True, slots=True)
class StrideJob:
    """A job that takes turns: it needs all its `size` GPUs at once. `tickets` are above zero."""

    job: JobId
    tickets: float
    size: int = 1

    @property
    def stride(self) -> float:
        """How far one quantum takes it."""
        return self.size / self.tickets


def plain_stride(queue: Sequence[StrideJob], passes: MutableMapping[JobId, float]) -> JobId:
    """The job of the least pass has the quantum, whatever its size; among equals the first of the queue."""
    job = min(queue, key=lambda job: passes[job.job])
    passes[job.job] += 1 / job.tickets
    return job.job


def gang_aware_stride(queue: Sequence[StrideJob], passes: MutableMapping[JobId, float], gpus: int) -> tuple[JobId, ...]:
    """Those that have the next quantum on a server of so many GPUs: in order of pass, whoever still fits.

    Passes are brought forward. Among equals the first of the queue goes first.
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
    """A `Ledger` in Python numbers: for one claim at a time they beat arrays by far."""

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
        """The same as arrays."""
        columns = (
            np.array(column, dtype=np.int64) for column in (self.gpus, self.cpus, self.memory, self.exclusive_jobs)
        )
        return FreeResources(pools, *columns)

    def fits(self, allocation: Allocation) -> bool:
        """Whether all of it is free."""
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
    """Who has a place. `kept` run on, `started` are given one, `left` must leave, each with the contender it is for.

    `blocked` would have had its turn, had more jobs been allowed to be moved.
    """

    kept: dict[JobId, RunnableJob] = field(default_factory=dict)
    started: dict[JobId, tuple[RunnableJob, Placement]] = field(default_factory=dict)
    preempted: dict[JobId, tuple[RunnableJob, RunnableJob]] = field(default_factory=dict)
    blocked: set[JobId] = field(default_factory=set)


def split_stride(
    problem: StrideProblem, queue: Sequence[RunnableJob], moves: int
) -> tuple[StrideSchedule, ScalarFreeResources]:
    """One round over the queue, which is in order of pass; no more than `moves` running jobs leave.

    Where more would have to, the servers on which the difference is greatest come first.
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
    """Gang-aware stride on one server: in order of pass, whoever still fits."""
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
    """Gang-aware stride for the wide: a gang has its turn on GPUs that no server gives to jobs of lesser pass."""
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
        free_here = free.as_arrays(problem.pools)
        free_here.gpus -= reserved
        if runnable.job.original_request.exclusive:
            free_here.gpus[reserved > 0] = 0
        placement = find_placement(runnable.demand, DemandLevel.MINIMUM, free_here, CONSOLIDATED)
        if placement is None:
            unplaceable.add(runnable.demand)
        else:
            free.allocate(placement.allocation(problem.pools))
            schedule.started[runnable.job.id] = (runnable, placement)


def _with_reserved(allocation: Allocation, reserved: Ints) -> Allocation:
    """The lease, and what goes before it on the same GPUs."""
    return replace(
        allocation,
        gpus=tuple(gpus + int(reserved[pool]) for pool, gpus in zip(allocation.pools, allocation.gpus, strict=True)),
    )


def _keep_undisturbed(
    problem: StrideProblem, queue: Sequence[RunnableJob], free: ScalarFreeResources, schedule: StrideSchedule
) -> None:
    """Of those that have no turn: whoever makes room for nobody stays, the others leave for the first who came."""
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
    """Of those that should leave, as many as may: all of a group of servers or none, the most overdue group first.

    Servers are in one group where a gang that starts lies on them together, or a job that leaves did.
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
        there = join(runnable.allocation.pools if runnable.allocation else ())
        groups[there].append(job)
        urgency[there] = max(urgency[there], runnable.pass_value - newcomer.pass_value)
    chosen: list[JobId] = []
    for there in sorted(groups, key=lambda there: (-urgency[there], there)):
        if len(chosen) + len(groups[there]) <= moves:
            chosen += groups[there]
    return frozenset(chosen)


@dataclass(frozen=True, slots=True)
class _FastestTypeFirst:
    """The fastest type there is room on (slide 11), then the server with the least free that is just enough."""

    speed_rank: Ints
    """By pool, 0 for the fastest type."""
    name: str = "fastest type with room"

    def select(self, free: FreeResources, candidates: Ints, count: int) -> Ints:
        return candidates[np.lexsort((free.gpus[candidates], self.speed_rank[candidates]))[:count]]


def backfill(
    problem: StrideProblem,
    waiting: Iterable[RunnableJob],
    servers_free: ScalarFreeResources,
    fastest_first: tuple[str, ...],
) -> Mapping[JobId, Placement]:
    """Places for those of the waiting, in order, that fit into what is left."""
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
