"""Hadar as a policy (Sultana et al., 2025): rounds by primal-dual prices on a live cluster.

Hadar chooses which jobs run on which GPU types. The pipeline that all policies share chooses nodes, CPUs and memory and
limits moves. A gang on several types is submitted to Slurm as a job that is pinned to several nodes, with GPUs of no
type; so it must not ask for a type, and must accept several nodes. Other jobs stay on one type, and their reason says
so where that makes them wait.

A job that preempted others is not itself preempted in the next round: its start cost a restart, which has to pay off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState, RankedJob, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.gang import gang_of, why_single_type
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import (
    GangThroughput,
    HadarJob,
    ServerPools,
    TaskAllocation,
    UtilityFactory,
    slack_aware,
)
from slurmsched.policies.orders import rank_by
from slurmsched.policies.reasons import EmptyCluster, format_type_mix
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.stages import Entitlement, PreemptionRule, Situation

DEFAULT_REMAINING: Final = 24 * 3600.0
"""Remaining seconds of a job without a duration estimate."""


@dataclass(frozen=True, slots=True)
class HadarProblem:
    """The input of `HadarScheduler.decide`. Pools are numbered as in `policies.cluster.resources.Pools`.

    Non-preemptible jobs and their GPUs are left out.
    """

    queue: tuple[HadarJob, ...]
    servers: ServerPools
    running: Mapping[JobId, TaskAllocation]


def build_problem(situation: Situation) -> HadarProblem:
    """Returns the schedulable jobs in submission order, and the GPUs that they have or could have on open nodes."""
    free = FreeResources.of_snapshot(situation.snapshot)
    pools, types = free.pools, free.pools.known_types
    eligibility = Eligibility(pools, situation.snapshot, situation.open_nodes)
    eligible_pools = {job.id: eligibility.pool_masks(job) for job in situation.jobs}
    in_order = sorted(situation.jobs, key=lambda job: job.queue_key)
    empty_cluster = EmptyCluster(
        pools, situation.snapshot, situation.knowledge, Proportional(), _mixable_types(in_order, types)
    )
    schedulable = [
        job
        for job in in_order
        if job.id not in situation.non_preemptible and _is_schedulable(job) and not empty_cluster.unmet_demand(job)
    ]
    usable = np.zeros(len(pools), dtype=np.bool_)
    for job in schedulable:
        for mask in eligible_pools[job.id]:
            usable |= mask
    capacity = np.where(usable, free.gpus.clip(min=0), 0)
    running: dict[JobId, TaskAllocation] = {}
    for job in schedulable:
        if job.allocations:
            allocation = pools.allocation(job.allocations)
            running[job.id] = tuple(sorted(zip(allocation.pools, allocation.gpus, strict=True)))
            for pool, gpus in running[job.id]:
                capacity[pool] += gpus
    type_of = np.array([types.index(kind) if kind else 0 for kind in pools.gpu_types], dtype=np.int64)
    servers = ServerPools(types, type_of, pools.node_of, np.asarray(capacity, dtype=np.int64))
    reachable = {
        job.id: {pools.gpu_types[pool] for mask in eligible_pools[job.id] for pool in np.flatnonzero(mask)}
        | {share.gpu_type for share in job.allocations}
        for job in schedulable
    }
    copies = Counter(job.copy_of or job.id for job in schedulable)
    copies_of = {job.id: copies[job.copy_of or job.id] for job in schedulable}
    queue = tuple(
        _divide_work(_hadar_job(job, situation, types, reachable[job.id]), copies_of[job.id]) for job in schedulable
    )
    return HadarProblem(queue, servers, running)


def _mixable_types(jobs: Iterable[Job], types: tuple[str, ...]) -> dict[JobId, frozenset[str]]:
    return {job.id: frozenset(types) for job in jobs if not why_single_type(job.original_request)}


def _is_schedulable(job: Job) -> bool:
    return job.original_request.gpus > 0 and job.state in (JobState.PENDING, JobState.RUNNING)


def _hadar_job(job: Job, situation: Situation, types: tuple[str, ...], reachable: set[str]) -> HadarJob:
    """Returns the job for Hadar; an iteration is a second on the reference type with proportional CPUs and memory."""
    knowledge, gang = situation.knowledge, gang_of(job.original_request, None, memory_tunable=False)
    consolidated = tuple(_rate_on_type(job, kind, knowledge, 1) if kind in reachable else 0.0 for kind in types)
    spread = tuple(_rate_on_type(job, kind, knowledge, 2) if kind in reachable else 0.0 for kind in types)
    throughput = GangThroughput(
        job.original_request.gpus,
        consolidated,
        spread,
        gang.min_nodes,
        gang.max_nodes,
        not why_single_type(job.original_request),
    )
    remaining = knowledge.remaining_seconds(job)
    remaining = DEFAULT_REMAINING if remaining == inf else remaining
    age = max(0.0, situation.snapshot.time - job.submit_time)
    return HadarJob(job.id, throughput, remaining, remaining + knowledge.executed_seconds(job), age)


def _divide_work(job: HadarJob, copies: int) -> HadarJob:
    """Returns the job with the work of one of `copies` copies."""
    return replace(job, remaining=job.remaining / copies, total=job.total / copies)


def _rate_on_type(job: Job, gpu_type: str, knowledge: Knowledge, nodes: int) -> float:
    return knowledge.type_speed(job, {gpu_type: job.original_request.gpus}, nodes)


_STATE_KEY: Final = "came"


def protected_preemptors(situation: Situation) -> dict[JobId, Reason]:
    """Returns the running jobs that preempted others in the last round.

    State of another policy, or invalid state, is ignored.
    """
    raw = situation.state.get(_STATE_KEY)
    preemptors = {job for job in raw if isinstance(job, str)} if isinstance(raw, list | tuple) else set[str]()
    return {
        job.id: Reason(
            ReasonCode.MIN_RUN_TIME,
            {"run": format_duration(job.run_time), "minimum": format_duration(situation.period)},
        )
        for job in situation.jobs
        if job.id in preemptors and job.allocations and job.state is JobState.RUNNING
    }


@dataclass(frozen=True, slots=True)
class HadarPrices:
    """Entitlement by prices: each job gets the GPU types that pay it most."""

    make_utility: UtilityFactory = slack_aware
    name: str = "hadar"

    def __call__(self, situation: Situation, postponed: Mapping[JobId, Reason] | None = None) -> Entitlement:
        """The jobs in `postponed` are not in the situation; they rank last."""
        problem = build_problem(situation)
        scheduler = HadarScheduler(self.make_utility, restart_cost=situation.restart_cost, period=situation.period)
        # Prices cover all jobs, protected ones too: else utilities of rounds are not comparable and rounds alternate.
        types = _types_by_job(problem, scheduler.decide(problem.queue, problem.servers, problem.running))
        protected = protected_preemptors(situation)
        schedulable = {job.job for job in problem.queue}

        def total_utility(allocations: Mapping[JobId, Allocation]) -> float:
            """CPUs or memory may lead to other nodes than the prices chose; no job is preempted for a lower utility."""
            tasks = {
                job: tuple(sorted(zip(allocation.pools, allocation.gpus, strict=True)))
                for job, allocation in allocations.items()
                if job in schedulable
            }
            return scheduler.total_utility(problem.queue, problem.servers, tasks, problem.running)

        return Entitlement(
            order=_PayoffOrder(types, frozenset(protected), frozenset(postponed or {}), self.name),
            gpu_types={job: frozenset(kinds) for job, kinds in types.items()},
            rates={
                (job.job, kind): rate
                for job in problem.queue
                for kind, rate in zip(problem.servers.types, job.throughput.consolidated, strict=True)
            },
            protected=protected,
            postponed=postponed or {},
            mixes_types=True,
            utility=total_utility,
            next_state=lambda victims, _: {_STATE_KEY: sorted(set(victims.values()))},
        )


@dataclass(frozen=True, slots=True)
class _PayoffOrder:
    """First jobs with an allocation that wait or already run on its types, then jobs that are to change types, then
    the others; each group in submission order."""

    types: Mapping[JobId, Mapping[str, int]]
    protected: frozenset[JobId]
    postponed: frozenset[JobId]
    name: str

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(
            situation,
            lambda job: (job.id in self.postponed, not self._keeps_types(job), job.id not in self.types),
            self._explain,
        )

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        fixed = situation.non_preemptible.keys() | self.protected
        return lambda newcomer, running: (
            self._keeps_types(newcomer) and not self._keeps_types(running) and running.id not in fixed
        )

    def _keeps_types(self, job: Job) -> bool:
        """Returns whether it has an allocation and does not run on other types."""
        kinds = self.types.get(job.id)
        return kinds is not None and (not job.allocations or _held_by_type(job) == Counter(kinds))

    def _explain(self, job: Job) -> str:
        if job.id in self.postponed:
            return "no steps left for it"
        kinds = self.types.get(job.id)
        return f"pays for {format_type_mix(kinds)}" if kinds else "no GPUs at these prices"


def _types_by_job(
    problem: HadarProblem, allocations: Mapping[JobId, tuple[tuple[int, int], ...]]
) -> dict[JobId, dict[str, int]]:
    """Returns the GPUs of each type by job."""
    servers = problem.servers
    return {
        job: {servers.types[kind]: gpus for kind, gpus in servers.gpus_by_type(allocation).items()}
        for job, allocation in allocations.items()
    }


def _held_by_type(job: Job) -> Counter[str]:
    held = Counter[str]()
    for share in job.allocations:
        held[share.gpu_type] += share.resources.gpus
    return held
