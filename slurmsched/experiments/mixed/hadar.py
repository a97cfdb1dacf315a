"""Hadar in the replay: gangs over several GPU types, allocated by prices (Sultana et al., sections III and IV)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob, ServerPools, TaskAllocation
from slurmsched.simulation.replay import ActiveJob, GpuWorkers, Grant, ReplayJob, RoundInput


@dataclass(slots=True)
class HadarReplayPolicy:
    """Decides again when a job has arrived or ended; otherwise all jobs keep their allocations."""

    scheduler: HadarScheduler = field(default_factory=HadarScheduler)
    name: str = "hadar"
    _jobs: frozenset[str] = frozenset()
    _allocations: dict[str, TaskAllocation] = field(default_factory=dict)
    _server_pools: ServerPools | None = None

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        pools = self._server_pools = self._server_pools or server_pools(round_input.workers)
        jobs, workers_before = (
            frozenset(round_input.jobs),
            {outcome.grant.jobs[0]: outcome.grant.workers for outcome in round_input.previous},
        )
        self._allocations = {job: tasks for job, tasks in self._allocations.items() if job in jobs}
        if jobs != self._jobs:
            queue = hadar_jobs(round_input, pools)
            self._allocations = self.scheduler.decide(queue, pools, self._allocations)
            self._jobs = jobs
        return _assign_workers(round_input.workers, pools, self._allocations, workers_before)


def server_pools(workers: GpuWorkers) -> ServerPools:
    """Returns a pool for the GPUs of each type on each server."""
    sizes: dict[tuple[int, str], int] = defaultdict(int)
    for server, kind in zip(workers.server_indices, workers.gpu_types, strict=True):
        sizes[server, kind] += 1
    types = tuple(workers.gpus_by_type)
    return ServerPools(
        types,
        np.array([types.index(kind) for _, kind in sizes], dtype=np.int64),
        np.array([server for server, _ in sizes], dtype=np.int64),
        np.array([*sizes.values()], dtype=np.int64),
    )


def hadar_jobs(round_input: RoundInput, pools: ServerPools) -> list[HadarJob]:
    """Returns the active jobs as Hadar's problem; equal jobs share one throughput object."""
    throughputs: dict[GangThroughput, GangThroughput] = {}
    return [_hadar_job(active, round_input.time, pools, throughputs) for active in round_input.jobs.values()]


def gang_throughput(job: ReplayJob, pools: ServerPools) -> GangThroughput:
    """Returns the whole gang's throughput by type. The replay has no loss between servers."""
    rates = tuple(job.rates.get(kind, 0.0) for kind in pools.types)
    return GangThroughput(job.gpus, rates, rates)


def _hadar_job(
    active: ActiveJob, now: float, pools: ServerPools, throughputs: dict[GangThroughput, GangThroughput]
) -> HadarJob:
    job, throughput = active.spec, gang_throughput(active.spec, pools)
    return HadarJob(
        job.id, throughputs.setdefault(throughput, throughput), active.remaining, job.steps, now - job.arrival
    )


def _assign_workers(
    workers: GpuWorkers,
    pools: ServerPools,
    allocations: Mapping[str, TaskAllocation],
    workers_before: Mapping[str, tuple[int, ...]],
) -> list[Grant]:
    """Returns workers for the allocations. A job that stays in its pools keeps its workers."""
    types, free = pools.types, defaultdict[tuple[int, str], list[int]](list)
    for worker, key in enumerate(zip(workers.server_indices, workers.gpu_types, strict=True)):
        free[key].append(worker)
    pool = [(int(s), types[t]) for s, t in zip(pools.server_of, pools.type_of, strict=True)]
    grants: dict[str, Grant] = {}
    for job, tasks in allocations.items():
        kept = workers_before.get(job, ())
        if kept and _count_by_pool(workers, kept) == {pool[index]: gpus for index, gpus in tasks}:
            grants[job] = Grant((job,), kept)
            for worker in kept:
                free[workers.server_indices[worker], workers.gpu_types[worker]].remove(worker)
    for job, tasks in allocations.items():
        if job not in grants:
            taken = [free[pool[index]].pop(0) for index, gpus in tasks for _ in range(gpus)]
            grants[job] = Grant((job,), tuple(sorted(taken)))
    return [*grants.values()]


def _count_by_pool(workers: GpuWorkers, taken: Sequence[int]) -> dict[tuple[int, str], int]:
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for worker in taken:
        counts[workers.server_indices[worker], workers.gpu_types[worker]] += 1
    return dict(counts)
