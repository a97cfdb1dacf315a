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
from slurmsched.model import Decision, Job, JobId, JobState, RankedJob, Reason, ReasonCode, Request, Target
from slurmsched.model.reasons import format_duration
from slurmsched.policies.admit.allocate import AllocateFree
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.free import FreeResources
from slurmsched.policies.cluster.gang import gang_of
from slurmsched.policies.cluster.pools import Pools
from slurmsched.policies.finish.resize import resize_running
from slurmsched.policies.finish.spare import distribute_spare
from slurmsched.policies.gavel.policy import MigrateToFasterType, managed_gpus
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
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.place.placement import CONSOLIDATED
from slurmsched.policies.reasons import EmptyCluster
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.stages import PreemptionRule, Situation

DEFAULT_REMAINING: Final = 24 * 3600.0
"""Remaining seconds of a job without a duration estimate."""


@dataclass(frozen=True, slots=True)
class HadarProblem:
    """The input of `HadarScheduler.decide`. Pools are numbered as in `policies.cluster.pools.Pools`.

    Non-preemptible jobs and their GPUs are left out.
    """

    queue: tuple[HadarJob, ...]
    servers: ServerPools
    running: Mapping[JobId, TaskAllocation]


def build_problem(situation: Situation) -> HadarProblem:
    """Returns the schedulable jobs in submission order, and the GPUs that they have or could have on open nodes."""
    free = FreeResources.of_snapshot(situation.snapshot)
    pools, types = free.pools, tuple(dict.fromkeys(free.pools.gpu_types))
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
    type_of = np.array([types.index(kind) for kind in pools.gpu_types], dtype=np.int64)
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


def why_single_type(request: Request) -> str:
    """Returns why the job cannot run on several GPU types on Slurm; empty if it can."""
    gang = gang_of(request, None, memory_tunable=False)
    if request.gpu_type is not None:
        return f"it asks for {request.gpu_type}"
    return "it asks for one node, and a node has one GPU type" if gang.max_nodes == 1 else ""


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


def format_type_mix(types: Mapping[str, int]) -> str:
    """Returns the GPUs of each type as text: `2 p100 + 2 v100`."""
    return " + ".join(f"{gpus} {kind}" for kind, gpus in sorted(types.items()))


def explain_mix(target: Target) -> Target:
    """Adds a reason for the GPU types of a target that has several; people see the first reason."""
    kinds = Counter[str]()
    for share in target.allocations:
        kinds[share.gpu_type] += share.resources.gpus
    if len(kinds) == 1 or target.reasons[0].code is ReasonCode.KEEPS_LEASE:
        return target
    mixed, first = Reason(ReasonCode.MIXED, {"mix": format_type_mix(kinds)}), target.reasons[0]
    uninformative = first.code in (ReasonCode.FIRST_IN_ORDER, ReasonCode.FILLS_IN)
    leading = (mixed, first) if uninformative else (first, mixed)
    return replace(target, reasons=(*leading, *target.reasons[1:]))


def explain_wait(why: Reason, request: Request, idle: int) -> Reason:
    """Replaces the reason of a job that could run on the idle GPUs if it were allowed several types."""
    why_single = why_single_type(request)
    if (
        why.code not in (ReasonCode.NO_ROOM, ReasonCode.BEHIND)
        or idle < request.gpus
        or not why_single
        or request.gpus == 1
    ):
        return why
    return Reason(ReasonCode.ONE_TYPE, {"gpus": request.gpus, "why": why_single})


_STATE_KEY: Final = "came"


def protect_preemptors(situation: Situation) -> Situation:
    """Returns the situation with the running jobs that preempted others in the last round as non-preemptible.

    State of another policy, or invalid state, is ignored.
    """
    raw = situation.state.get(_STATE_KEY)
    preemptors = {job for job in raw if isinstance(job, str)} if isinstance(raw, list | tuple) else set[str]()
    fixed = {
        job.id: Reason(
            ReasonCode.MIN_RUN_TIME,
            {"run": format_duration(job.run_time), "minimum": format_duration(situation.period)},
        )
        for job in situation.jobs
        if job.id in preemptors and job.allocations and job.state is JobState.RUNNING
    }
    return replace(situation, non_preemptible={**fixed, **situation.non_preemptible})


def remember_preemptors(decision: Decision) -> Decision:
    """Returns the decision with the jobs that preempt others as its state."""
    return replace(decision, state={_STATE_KEY: sorted(set(decision.victims.values()))})


@dataclass(frozen=True, slots=True)
class SpreadCopies:
    """Finish step: places copies of a forked job that are still waiting on any idle GPU (HadarE, theorem 3).

    Prices ignore that two copies of a job may not share a node, so the type a copy was given may be free only on nodes
    with other copies. `copies` are the jobs as submitted.
    """

    copies: Mapping[JobId, Job]

    def __call__(self, session: Session) -> None:
        step = AllocateFree(session)
        for entry in session.ranking:
            job = self.copies.get(entry.job)
            if job is not None and session.needs_placement(job):
                session.jobs[job.id] = job
                session.demands.forget(job)
                step.try_admit(job)


@dataclass(frozen=True, slots=True)
class HadarPolicy:
    """A round by payoff. With `forks` the copies of a forked job run on different nodes, and on every idle node."""

    make_utility: UtilityFactory = slack_aware
    name: str = "hadar"
    forks: bool = False

    def decide(self, situation: Situation) -> Decision:
        problem = build_problem(situation)
        scheduler = HadarScheduler(self.make_utility, restart_cost=situation.restart_cost, period=situation.period)
        # Prices cover all jobs, protected ones too: else utilities of rounds are not comparable and rounds alternate.
        situation = protect_preemptors(situation)
        types = _types_by_job(problem, scheduler.decide(problem.queue, problem.servers, problem.running))
        jobs = tuple(_with_given_type(job, types.get(job.id)) for job in situation.jobs)
        mixed = {job: frozenset(kinds) for job, kinds in types.items() if len(kinds) > 1}
        copies = {job.id: job for job in situation.jobs if self.forks and job.copy_of}
        parents = {job.id: job.copy_of for job in copies.values()}
        steps = (_migration(problem, types), SpreadCopies(copies), distribute_spare, resize_running)
        pipeline = Pipeline(self.name, _PayoffOrder(types), Proportional(), CONSOLIDATED, steps, mixed, parents)
        decision = pipeline.decide(replace(situation, jobs=jobs))
        if decision.victims:
            without_moves = pipeline.decide(replace(situation, jobs=jobs, max_moves=0))
            if self._total_utility(scheduler, problem, situation, decision) <= self._total_utility(
                scheduler, problem, situation, without_moves
            ):
                decision = without_moves
        requests = {job.id: job.original_request for job in situation.jobs}
        idle = _idle_gpus(situation, decision)
        waiting = {job: explain_wait(why, requests[job], idle) for job, why in decision.waiting.items()}
        targets = {job: explain_mix(target) for job, target in decision.targets.items()}
        return remember_preemptors(replace(decision, targets=targets, waiting=waiting))

    @staticmethod
    def _total_utility(
        scheduler: HadarScheduler, problem: HadarProblem, situation: Situation, decision: Decision
    ) -> float:
        """Returns the total utility of the decision's nodes, which CPUs or memory may make others than the prices
        chose; no job is preempted for a lower one."""
        pools, schedulable = Pools(situation.snapshot.nodes), {job.job for job in problem.queue}
        held = {
            job: pools.allocation(target.allocations) for job, target in decision.targets.items() if job in schedulable
        }
        allocations = {
            job: tuple(sorted(zip(allocation.pools, allocation.gpus, strict=True))) for job, allocation in held.items()
        }
        return scheduler.total_utility(problem.queue, problem.servers, allocations, problem.running)


@dataclass(frozen=True, slots=True)
class _PayoffOrder:
    """First jobs with an allocation that wait or already run on its types, then jobs that are to change types, then
    the others; each group in submission order."""

    types: Mapping[JobId, Mapping[str, int]]
    name: str = "hadar"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(situation, lambda job: (not self._keeps_types(job), job.id not in self.types), self._explain)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        fixed = situation.non_preemptible
        return lambda newcomer, running: (
            self._keeps_types(newcomer) and not self._keeps_types(running) and running.id not in fixed
        )

    def _keeps_types(self, job: Job) -> bool:
        """Returns whether it has an allocation and does not run on other types."""
        kinds = self.types.get(job.id)
        return kinds is not None and (not job.allocations or _held_by_type(job) == Counter(kinds))

    def _explain(self, job: Job) -> str:
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


def _migration(problem: HadarProblem, types: Mapping[JobId, Mapping[str, int]]) -> MigrateToFasterType:
    """Returns the step that moves running jobs to another type; no job is moved onto several types."""
    target_types = {job: next(iter(given)) for job, given in types.items() if len(given) == 1}
    rates = {
        (job.job, kind): rate
        for job in problem.queue
        for kind, rate in zip(problem.servers.types, job.throughput.consolidated, strict=True)
    }
    return MigrateToFasterType(target_types, rates)


def _with_given_type(job: Job, types: Mapping[str, int] | None) -> Job:
    """Returns the job as if it asked for the type it was given; unchanged if it was given several or none."""
    if types is None or len(types) > 1 or job.original_request.gpu_type:
        return job
    return replace(job, original_request=replace(job.original_request, gpu_type=next(iter(types))))


def _held_by_type(job: Job) -> Counter[str]:
    held = Counter[str]()
    for share in job.allocations:
        held[share.gpu_type] += share.resources.gpus
    return held


def _idle_gpus(situation: Situation, decision: Decision) -> int:
    """Returns the GPUs on open nodes that the decision gives to no job."""
    types = {gpu.type for node in situation.snapshot.nodes for gpu in node.gpus}
    managed = sum(managed_gpus(situation, sorted(types)).values())
    return managed - sum(target.resources.gpus for target in decision.targets.values())
