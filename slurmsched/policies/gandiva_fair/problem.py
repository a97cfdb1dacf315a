"""The input of a stride round: runnable jobs, pools and the capacity that managed jobs may use.

Free resources as plain numbers, for loops over single allocations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import Job, JobId, JobState
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.empty_cluster import EmptyCluster
from slurmsched.policies.sizes import Sizing, resources_on_node
from slurmsched.policies.stages import RoundResources, Situation

MIN_TICKETS: Final = 1e-6
"""A job that is entitled to less counts as entitled to this much."""


@dataclass(slots=True)
class RunnableJob:
    """A job that takes part in stride scheduling.

    `allocation` is None while it waits. `is_local` means that it fits into one pool. `assigned_pool` is the pool it is
    scheduled in; -1 for a job that needs several nodes or has none yet. `tickets` is the number of GPUs it is entitled
    to, `pass_value` its service in seconds on those GPUs.
    """

    job: Job
    demand: ResourceDemand
    allocation: Allocation | None
    is_local: bool
    size: int
    """GPUs."""
    assigned_pool: int = -1
    tickets: float = 0.0
    pass_value: float = 0.0
    is_awaiting: bool = False
    """Whether it starts once others have left: it keeps its place in the queue, and this round does not place it."""
    _quantum: tuple[float, float] | None = None
    """Tickets, and its shortest slice with these."""

    @property
    def waits(self) -> bool:
        """Whether a round may start it."""
        return self.allocation is None and not self.is_awaiting

    def min_quantum(self, situation: Situation) -> float:
        """Return the length of its shortest slice in seconds, that of the settings or longer. It is computed once for
        these tickets: the situation is that of its problem."""
        if self._quantum is None or self._quantum[0] != self.tickets:
            part = min(self.tickets / self.size, 1.0)
            quantum = max(self.paying_quantum(situation), situation.shortest_slice(self.job.id, part))
            self._quantum = self.tickets, quantum
        return self._quantum[1]

    def paying_quantum(self, situation: Situation) -> float:
        """Return the length in seconds of the shortest slice that is worth its restart, however many a day has."""
        settings = situation.tickets
        shortest = settings.quantum if self.is_local else settings.wide_quantum
        return max(shortest, situation.shortest_slice(self.job.id, 0.0))

    def stride(self, quantum: float) -> float:
        """Return by how many seconds a slice of `quantum` seconds advances its pass."""
        return self.size * quantum / max(self.tickets, MIN_TICKETS)


class StrideProblem:
    """One round: the pools with their capacity for managed jobs, and the jobs that compete for it."""

    def __init__(self, situation: Situation, sizing: Sizing) -> None:
        self.situation = situation
        self.resources = resources = RoundResources.of(situation, sizing)
        self.pools = resources.free.pools
        self.empty_cluster = EmptyCluster(
            self.pools, situation.snapshot, situation.knowledge, sizing, classes=resources.demands.classes
        )
        self.capacity = resources.free.copy()
        """Free resources if no managed job ran, and none was completing."""
        self._local_pools: dict[ResourceDemand, Ints] = {}
        self._local_pool_sets: dict[ResourceDemand, frozenset[int]] = {}
        self._types: dict[ResourceDemand, frozenset[str]] = {}
        awaiting = frozenset(job.id for job in situation.awaiting)
        jobs = (*situation.jobs, *(job for job in situation.awaiting if job.original_request.gpus))
        not_ending = (job for job in jobs if job.state is not JobState.COMPLETING)
        self.runnable_jobs = [
            self._runnable_job(job, is_awaiting=job.id in awaiting)
            for job in sorted(not_ending, key=lambda job: job.queue_key)
        ]
        """In submission order."""
        self.placeable_jobs = [runnable for runnable in self.runnable_jobs if not runnable.is_awaiting]
        """Those of them that this round decides."""
        for runnable in self.runnable_jobs:
            if runnable.allocation is not None:
                self.capacity.release(runnable.allocation)
        for job in situation.snapshot.jobs_in_state(JobState.COMPLETING):
            self.capacity.release(self.pools.held_by(job))
        for runnable in self.runnable_jobs:
            self._assign_running(runnable)

    def _runnable_job(self, job: Job, *, is_awaiting: bool) -> RunnableJob:
        allocation, size = self.resources.running.get(job.id), max(job.original_request.gpus, 1)
        demand = self.resources.demands.of(job)
        return RunnableJob(job, demand, allocation, is_local=False, size=size, is_awaiting=is_awaiting)

    def _assign_running(self, runnable: RunnableJob) -> None:
        """Assign a running job to the pool it runs in, even where a new job of this demand could not start."""
        if runnable.allocation is None:
            runnable.is_local = bool(len(self.local_pools(runnable.demand)))
            return
        runnable.is_local = len(runnable.allocation.pools) == 1 and not runnable.allocation.exclusive
        runnable.assigned_pool = runnable.allocation.pools[0] if runnable.is_local else -1

    def local_pools(self, demand: ResourceDemand) -> Ints:
        """Return the pools that hold the whole gang when no other managed job is there."""
        known = self._local_pools.get(demand)
        if known is None:
            known = self._local_pools[demand] = self._find_local_pools(demand)
        return known

    def is_local_pool(self, demand: ResourceDemand, pool: int) -> bool:
        """Return whether the pool is one of `local_pools(demand)`."""
        known = self._local_pool_sets.get(demand)
        if known is None:
            known = self._local_pool_sets[demand] = frozenset(self.local_pools(demand).tolist())
        return pool in known

    def _find_local_pools(self, demand: ResourceDemand) -> Ints:
        gang, capacity = demand.gang, self.capacity
        whole = gang.request.exclusive or gang.request.whole_memory
        if gang.min_nodes > 1 or whole or len(demand.required_nodes) > 1 or not demand.single_node:
            return np.zeros(0, dtype=np.int64)
        node_of, units = self.pools.node_of, self.pools.cpu_units(gang.request.threads_per_core)
        suitable = np.zeros(len(self.pools), dtype=np.bool_)
        for option in demand.single_node:
            cpus, memory = (amounts[DemandLevel.MINIMUM] for amounts in (option.cpus, option.memory))
            cpus, memory = resources_on_node(gang, cpus, memory, gang.parts, memory_parts=gang.parts, units=units)
            suitable |= (
                option.mask
                & (capacity.gpus >= gang.parts * gang.gpus_per_part)
                & (capacity.cpus[node_of] >= cpus)
                & (capacity.memory[node_of] >= memory)
                & (capacity.exclusive_jobs[node_of] == 0)
            )
        if demand.required_nodes:
            suitable &= node_of == demand.required_nodes[0]
        return np.flatnonzero(suitable)

    def gpus_by_type(self) -> Mapping[str, float]:
        """Return the GPUs of each type on nodes that are open to managed jobs or run one; may be 0."""
        used = {
            pool
            for runnable in self.runnable_jobs
            if runnable.allocation is not None
            for pool in runnable.allocation.pools
        }
        open_nodes = frozenset().union(*self.situation.open_nodes.values())
        counts: dict[str, float] = {}
        for pool, (kind, gpus) in enumerate(zip(self.pools.gpu_types, self.capacity.gpus.tolist(), strict=True)):
            if not kind:
                continue
            usable = pool in used or self.pools.node(pool).name in open_nodes
            counts[kind] = counts.get(kind, 0.0) + (max(gpus, 0) if usable else 0)
        return counts

    def held_by_others(self) -> Sequence[tuple[Job, str, float]]:
        """Return the GPUs by type on these nodes that running jobs have which this round does not schedule, because
        they are not managed or about to start."""
        scheduled = {job.id for job in self.situation.jobs}
        nodes = frozenset().union(*self.situation.open_nodes.values())
        held = Counter[tuple[JobId, str]]()
        for job in self.situation.snapshot.jobs:
            if job.state in (JobState.RUNNING, JobState.SUSPENDED) and job.id not in scheduled:
                for share in job.allocations:
                    if share.node in nodes and share.gpu_type:
                        held[job.id, share.gpu_type] += share.resources.gpus
        known = self.situation.snapshot.jobs_by_id
        return [(known[job], gpu_type, float(gpus)) for (job, gpu_type), gpus in held.items() if gpus]

    def types_of(self, runnable: RunnableJob) -> frozenset[str]:
        """Return the GPU types it may run on; none for a job that can never run."""
        known = self._types.get(runnable.demand)
        if known is None:
            known = self._types[runnable.demand] = frozenset(
                self.pools.gpu_types[pool] for pool in self._pools_of(runnable)
            )
        return (
            known | {self.pools.gpu_types[pool] for pool in runnable.allocation.pools} if runnable.allocation else known
        )

    def faster_idle_types(self) -> tuple[Mapping[JobId, frozenset[str]], Mapping[tuple[JobId, str], float]]:
        """Return the fastest type of each running job that has its GPUs elsewhere, of the types with that many idle
        ones now, and its rates on the types where it was measured. A job without a faster type is missing."""
        idle, knowledge = self.resources.free.idle_by_type(), self.situation.knowledge
        types, rates = dict[JobId, frozenset[str]](), dict[tuple[JobId, str], float]()
        may_move = idle.total() and self.situation.max_moves > 0 and not self.situation.starts_only
        for runnable in self.placeable_jobs if may_move else ():
            job, held = runnable.job, frozenset(on_node.gpu_type for on_node in runnable.job.allocations)
            if runnable.allocation is None or len(held) != 1 or max(idle.values()) < runnable.size:
                continue
            measured = self.types_of(runnable) & knowledge.measured_types(job)
            of_job = knowledge.rates_by_type(job, sorted(measured), runnable.size, len(job.allocations))
            faster = {kind: rate for kind, rate in of_job.items() if idle[kind] >= runnable.size or kind in held}
            best = max(faster, key=faster.__getitem__, default="")
            if held <= faster.keys() and best not in held:
                types[job.id] = frozenset({best})
                rates |= {(job.id, kind): rate for kind, rate in of_job.items()}
        return types, rates

    def _pools_of(self, runnable: RunnableJob) -> Sequence[int]:
        pools: Sequence[int] = self.local_pools(runnable.demand).tolist()
        masks = [option.mask for option in (*runnable.demand.single_node, *runnable.demand.multi_node)]
        if pools or not masks or self.empty_cluster.unmet_demand(runnable.job):
            return pools
        return [pool for pool, open_to_it in enumerate(np.logical_or.reduce(masks).tolist()) if open_to_it]


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

    def as_arrays(self, pools: Pools, released: ScalarFreeResources | None = None) -> FreeResources:
        """Return the same as arrays, once what is `released` is free too."""
        columns = [
            np.array(column, dtype=np.int64) for column in (self.gpus, self.cpus, self.memory, self.exclusive_jobs)
        ]
        if released is not None:
            others = (released.gpus, released.cpus, released.memory, released.exclusive_jobs)
            columns = [one + np.array(other, dtype=np.int64) for one, other in zip(columns, others, strict=True)]
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

    def fits_with(self, released: ScalarFreeResources, allocation: Allocation) -> bool:
        """Return whether all of an allocation in one pool is free once what is `released` is free too."""
        pool, node = allocation.pools[0], self.node_of[allocation.pools[0]]
        return (
            self.gpus[pool] + released.gpus[pool] >= allocation.gpus[0]
            and self.cpus[node] + released.cpus[node] >= allocation.cpus[0]
            and self.memory[node] + released.memory[node] >= allocation.memory[0]
            and self.exclusive_jobs[node] + released.exclusive_jobs[node] == 0
        )

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
