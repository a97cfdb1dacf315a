"""A round on a live cluster as Hadar's question: jobs with their speeds, pools with what can be had of them.

Words for gangs on several GPU types, and for those that have to have one.

Who came in the place of others stays for the next round.

A restart was paid for that place, and has to pay off within a round. What the room of nodes and the limit on moves left
undone of one round's plan may be done in the next; but not at the cost of those for whom the first displaced somebody.

Copies of one job go to every idle node (HadarE, theorem 3).

Hadar on a cluster that runs: its places say who runs on which GPU types, and all systems here place alike.

Who runs where is decided by prices; nodes, CPUs, memory, leases and the limit on moves are those of every system. A
gang on several types reaches Slurm as a job on several nodes that it is pinned to, with GPUs of no type: so it must ask
for no type itself, and may lie on several nodes. Other jobs stay on one type, and say why where that makes them wait.
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
"""Seconds that a job is taken to need of which nothing is known."""


@dataclass(frozen=True, slots=True)
class HadarProblem:
    """What `Hadar.decide` is asked. Pools are numbered as in `policies.pools`; jobs that must stay are not in it, nor
    what they hold."""

    queue: tuple[HadarJob, ...]
    servers: ServerPools
    running: Mapping[JobId, TaskAllocation]


def build_problem(situation: Situation) -> HadarProblem:
    """The jobs that may be given a place, by submission, and the GPUs that they have or could have on open nodes."""
    ledger = FreeResources.of_snapshot(situation.snapshot)
    pools, types = ledger.pools, tuple(dict.fromkeys(ledger.pools.gpu_types))
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
    capacity = np.where(usable, ledger.gpus.clip(min=0), 0)
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
    """Why Slurm could not be told to spread this job over GPU types; empty where it could."""
    gang = gang_of(request, None, memory_tunable=False)
    if request.gpu_type is not None:
        return f"it asks for {request.gpu_type}"
    return "it asks for one node, and a node has one type" if gang.max_nodes == 1 else ""


def _mixable_types(jobs: Iterable[Job], types: tuple[str, ...]) -> dict[JobId, frozenset[str]]:
    return {job.id: frozenset(types) for job in jobs if not why_single_type(job.original_request)}


def _is_schedulable(job: Job) -> bool:
    return job.original_request.gpus > 0 and job.state in (JobState.PENDING, JobState.RUNNING)


def _hadar_job(job: Job, situation: Situation, types: tuple[str, ...], reachable: set[str]) -> HadarJob:
    """Iterations are seconds on the reference type at the proportional share."""
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
    """What one of so many copies has to do of it."""
    return replace(job, remaining=job.remaining / copies, total=job.total / copies)


def _rate_on_type(job: Job, gpu_type: str, knowledge: Knowledge, nodes: int) -> float:
    return knowledge.type_speed(job, {gpu_type: job.original_request.gpus}, nodes)


def format_type_mix(types: Mapping[str, int]) -> str:
    """GPUs of each type: `2 p100 + 2 v100`."""
    return " + ".join(f"{gpus} {kind}" for kind, gpus in sorted(types.items()))


def explain_mix(target: Target) -> Target:
    """With a word on its types where there are several; people are shown the first word."""
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
    """That it cannot be mixed, where the GPUs that are idle would be enough if it could."""
    unmixed = why_single_type(request)
    if (
        why.code not in (ReasonCode.NO_ROOM, ReasonCode.BEHIND)
        or idle < request.gpus
        or not unmixed
        or request.gpus == 1
    ):
        return why
    return Reason(ReasonCode.ONE_TYPE, {"gpus": request.gpus, "why": unmixed})


_STATE_KEY: Final = "came"


def protect_preemptors(situation: Situation) -> Situation:
    """The same round, in which running jobs that displaced somebody in the last one are not displaced. What is
    remembered may be another system's, or nothing that makes sense: then it says nothing."""
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
    """With those who displaced somebody as the system's memory."""
    return replace(decision, state={_STATE_KEY: sorted(set(decision.victims.values()))})


@dataclass(frozen=True, slots=True)
class SpreadCopies:
    """Prices know nothing of copies that may not be on one node: one that was given a GPU type of which all are beside
    other copies takes any that is idle. `copies` are as their owners submitted them."""

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
    """A round by payoff. With `forks` the copies of a job are on nodes of their own, and on every one that is idle."""

    make_utility: UtilityFactory = slack_aware
    name: str = "hadar"
    forks: bool = False

    def decide(self, situation: Situation) -> Decision:
        problem = build_problem(situation)
        scheduler = HadarScheduler(self.make_utility, restart_cost=situation.restart_cost, period=situation.period)
        # Prices and utilities are of all jobs: else the worth of two rounds is not comparable, and they may alternate.
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
        """What the nodes that were found are worth: they may be others than the prices foresaw, for want of CPUs or
        memory, and nobody is displaced for less."""
        pools, schedulable = Pools(situation.snapshot.nodes), {ask.job for ask in problem.queue}
        held = {
            job: pools.allocation(target.allocations) for job, target in decision.targets.items() if job in schedulable
        }
        allocations = {
            job: tuple(sorted(zip(allocation.pools, allocation.gpus, strict=True))) for job, allocation in held.items()
        }
        return scheduler.total_utility(problem.queue, problem.servers, allocations, problem.running)


@dataclass(frozen=True, slots=True)
class _PayoffOrder:
    """First those that were given a place and run there already or wait, then those that were given another, then
    those that were given none; each by submission."""

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
        """Whether it has a place by price, and is not on other types."""
        kinds = self.types.get(job.id)
        return kinds is not None and (not job.allocations or _held_by_type(job) == Counter(kinds))

    def _explain(self, job: Job) -> str:
        kinds = self.types.get(job.id)
        return f"pays for {format_type_mix(kinds)}" if kinds else "pays for no place"


def _types_by_job(
    problem: HadarProblem, allocations: Mapping[JobId, tuple[tuple[int, int], ...]]
) -> dict[JobId, dict[str, int]]:
    """GPUs of each type by job."""
    servers = problem.servers
    return {
        job: {servers.types[kind]: gpus for kind, gpus in servers.gpus_by_type(allocation).items()}
        for job, allocation in allocations.items()
    }


def _migration(problem: HadarProblem, types: Mapping[JobId, Mapping[str, int]]) -> MigrateToFasterType:
    """Running jobs that were given another type; onto several types at once nobody is moved."""
    target_types = {job: next(iter(given)) for job, given in types.items() if len(given) == 1}
    known = problem.servers.types
    rates = {
        (ask.job, kind): rate
        for ask in problem.queue
        for kind, rate in zip(known, ask.throughput.consolidated, strict=True)
    }
    return MigrateToFasterType(target_types, rates)


def _with_given_type(job: Job, types: Mapping[str, int] | None) -> Job:
    """The job as if it asked for the one type it was given."""
    if types is None or len(types) > 1 or job.original_request.gpu_type:
        return job
    return replace(job, original_request=replace(job.original_request, gpu_type=next(iter(types))))


def _held_by_type(job: Job) -> Counter[str]:
    held = Counter[str]()
    for share in job.allocations:
        held[share.gpu_type] += share.resources.gpus
    return held


def _idle_gpus(situation: Situation, decision: Decision) -> int:
    """GPUs of any type that nobody was given, on nodes that jobs may start on."""
    types = {gpu.type for node in situation.snapshot.nodes for gpu in node.gpus}
    managed = sum(managed_gpus(situation, sorted(types)).values())
    return managed - sum(target.resources.gpus for target in decision.targets.values())
