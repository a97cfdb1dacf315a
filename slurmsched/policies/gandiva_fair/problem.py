"""The input of a stride round: runnable jobs, pools and the capacity that managed jobs may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import Job, JobState
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation
from slurmsched.policies.reasons import EmptyCluster
from slurmsched.policies.sizes import Sizing
from slurmsched.policies.stages import RoundResources, Situation
from slurmsched.settings.definition import TicketSettings

_MIN_TICKETS: Final = 1e-6


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

    def min_quantum(self, settings: TicketSettings) -> float:
        """Return the length of its shortest slice in seconds."""
        return settings.quantum if self.is_local else settings.wide_quantum

    def stride(self, quantum: float) -> float:
        """Return by how many seconds a slice of `quantum` seconds advances its pass."""
        return self.size * quantum / max(self.tickets, _MIN_TICKETS)


class StrideProblem:
    """One round: the pools with their capacity for managed jobs, and the jobs that compete for it."""

    def __init__(self, situation: Situation, sizing: Sizing) -> None:
        self.situation = situation
        self.resources = resources = RoundResources.of(situation, sizing)
        self.pools = resources.free.pools
        self.empty_cluster = EmptyCluster(self.pools, situation.snapshot, situation.knowledge, sizing)
        self.capacity = resources.free.copy()
        """Free resources if no managed job ran."""
        self._local_pools: dict[ResourceDemand, Ints] = {}
        self._local_pool_sets: dict[ResourceDemand, frozenset[int]] = {}
        self._types: dict[ResourceDemand, frozenset[str]] = {}
        not_ending = (job for job in situation.jobs if job.state is not JobState.COMPLETING)
        self.runnable_jobs = [self._runnable_job(job) for job in sorted(not_ending, key=lambda job: job.queue_key)]
        """In submission order."""
        for runnable in self.runnable_jobs:
            if runnable.allocation is not None:
                self.capacity.release(runnable.allocation)
        for runnable in self.runnable_jobs:
            self._assign_running(runnable)

    def _runnable_job(self, job: Job) -> RunnableJob:
        allocation = self.resources.running.get(job.id)
        return RunnableJob(
            job, self.resources.demands.of(job), allocation, is_local=False, size=max(job.original_request.gpus, 1)
        )

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
        if gang.min_nodes > 1 or gang.request.exclusive or len(demand.required_nodes) > 1 or not demand.single_node:
            return np.zeros(0, dtype=np.int64)
        node_of = self.pools.node_of
        suitable = np.zeros(len(self.pools), dtype=np.bool_)
        for option in demand.single_node:
            memory = np.maximum(option.memory[DemandLevel.MINIMUM] * gang.parts, gang.memory_per_node)
            suitable |= (
                option.mask
                & (capacity.gpus >= gang.parts * gang.gpus_per_part)
                & (capacity.cpus[node_of] >= option.cpus[DemandLevel.MINIMUM] * gang.parts)
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

    def _pools_of(self, runnable: RunnableJob) -> Sequence[int]:
        pools: Sequence[int] = self.local_pools(runnable.demand).tolist()
        masks = [option.mask for option in (*runnable.demand.single_node, *runnable.demand.multi_node)]
        if pools or not masks or self.empty_cluster.unmet_demand(runnable.job):
            return pools
        return [pool for pool, open_to_it in enumerate(np.logical_or.reduce(masks).tolist()) if open_to_it]
