"""The pure part of a scheduling round: from a snapshot and the scheduler's state to a decision and a plan."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from slurmsched.knowledge import Knowledge, OutOfMemoryPairs
from slurmsched.knowledge.probes import probe_profiles
from slurmsched.knowledge.refinement import family_profiles, latest_rates, measured_pairs, self_measured_profiles
from slurmsched.knowledge.usage import use_profiles, with_memory_in_use
from slurmsched.model import (
    Decision,
    IdleGpus,
    Job,
    JobId,
    JobState,
    Operation,
    Plan,
    Reason,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.policies.admit.promise import KeptPromise
from slurmsched.policies.policies import configured_policy, ranks_idle_last
from slurmsched.policies.stages import Policy, Situation
from slurmsched.rounds import refusals, scope
from slurmsched.rounds.checkpoints import awaited_checkpoints
from slurmsched.rounds.forecast import QueueAhead, WaitForecast
from slurmsched.rounds.guards import (
    GuardContext,
    cannot_move,
    contested_jobs,
    guarded_jobs,
    max_moves,
    preemptible_from,
    restart_costs,
)
from slurmsched.rounds.partitions import jobs_left_to_slurm, within_time_limits
from slurmsched.rounds.planner import ConfigFragment, Permissions, make_plan
from slurmsched.rounds.specs import with_original_requests
from slurmsched.rounds.starting import freeing_nodes, leaving_jobs, promise_starts, starting_jobs, unattributed_usage
from slurmsched.settings.definition import Settings


@dataclass(frozen=True)
class RoundResult:
    """A round's decision and plan. Each job of the snapshot is in `situation`, `ineligible` or `unmanaged`.

    `snapshot` has the original requests. `ineligible` are managed jobs that could not start now even on free nodes.
    """

    snapshot: Snapshot
    situation: Situation
    decision: Decision
    plan: Plan
    unmanaged: Mapping[JobId, Reason]
    ineligible: Mapping[JobId, Reason] = field(default_factory=dict)
    starts_only: bool = False
    """Whether it was an early round."""

    @cached_property
    def ranks(self) -> dict[JobId, int]:
        """The rank of each job in the order, from 1."""
        return {ranked.job: rank for rank, ranked in enumerate(self.decision.order, 1)}

    @cached_property
    def queue_ahead(self) -> QueueAhead:
        """Finds the jobs ahead of each job in the order."""
        return QueueAhead(self.snapshot, self.decision, self.situation.open_nodes)

    @cached_property
    def starts(self) -> dict[JobId, Operation]:
        """The RELEASE of each job that the plan starts."""
        return {op.subject: op for op in self.plan.operations if op.verb is Verb.RELEASE}

    @cached_property
    def forecast(self) -> WaitForecast:
        """The forecast for jobs that still wait after the planned starts."""
        starting = (target for job, target in self.decision.targets.items() if job in self.starts)
        allocations = tuple(allocation for target in starting for allocation in target.allocations)
        return WaitForecast(self.snapshot, self.situation.open_nodes, allocations, self.decision.promise)

    @cached_property
    def requeues(self) -> dict[JobId, Operation]:
        """The REQUEUE of each job that the plan preempts or moves."""
        return {op.subject: op for op in self.plan.operations if op.verb is Verb.REQUEUE}


def _idle_last(jobs: Iterable[Job], state: SchedulerState, settings: Settings, now: float) -> dict[JobId, IdleGpus]:
    """The running jobs that rank behind all others: their GPUs are idle, as was told since the last round, and their
    owners agreed. A run that is shorter than the time that counts as idle is not judged."""
    shortest = settings.learning.idle_after
    if not shortest or not ranks_idle_last(settings.policy):
        return {}
    agreed = (job for job in jobs if job.state is JobState.RUNNING and job.hints.idle_last and job.run_time >= shortest)
    told = {job.id: state.idle[job.id] for job in agreed if job.id in state.idle}
    return {job: idle for job, idle in told.items() if 0 <= now - idle.at < settings.rounds.period}


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause Python's collector of cycles while many objects that stay are made; afterwards it is as it was before.

    It would look at all of them again and again, which takes a fifth of a decision on a large cluster. What is in no
    cycle is freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@paused_collector()
def run_round(
    snapshot: Snapshot,
    state: SchedulerState,
    settings: Settings,
    knowledge: Knowledge,
    identity: Permissions,
    *,
    policy_override: Policy | None = None,
    config_fragments: Sequence[ConfigFragment] = (),
    starts_only: bool = False,
) -> RoundResult:
    """Decide and plan, changing nothing. `policy_override` replaces the policy that the settings name; with
    `starts_only` this is an early round, unless the policy finds that a full one is due."""
    observed = with_original_requests(snapshot, state)
    unattributed = unattributed_usage(observed)
    observed = promise_starts(observed, state.starting)
    observed = within_time_limits(observed)
    totals = scope.partition_totals(observed)
    unmanaged = {
        job.id: why for job in observed.jobs if (why := scope.unmanaged_reason(job, settings, totals)) is not None
    }
    unmanaged = jobs_left_to_slurm(observed, totals) | unmanaged
    managed = [job for job in observed.jobs if job.id not in unmanaged]
    ineligible = scope.ineligible_jobs(managed, state, observed)
    checkpoints = awaited_checkpoints(observed, state, settings)
    newcomers = {
        job: checkpoint.wait_reason(observed.time)
        for checkpoint in checkpoints
        for job in checkpoint.newcomers
        if job != checkpoint.job
    }
    coming = {job.id: newcomers[job.id] for job in managed if job.id in newcomers and job.id not in ineligible}
    starting = starting_jobs(observed, state.starting, {job.id for job in managed})
    ineligible |= coming | starting
    coming |= {job: why for job, why in starting.items() if state.starting[job].gone}
    awaiting = tuple(job for job in managed if job.id in coming)
    open_nodes = scope.usable_nodes(observed)
    decider = policy_override or configured_policy(settings.policy)

    def decide(later: Mapping[JobId, Reason], *, starts_only: bool) -> RoundResult:
        left_out = {**ineligible, **later}
        jobs = [job for job in managed if job.id not in left_out]
        due = (*jobs, *awaiting)
        known = replace(
            knowledge,
            service=state.service,
            service_by_type=state.service_by_type,
            own=self_measured_profiles(knowledge, due, state.measured),
            by_family=family_profiles(knowledge, due, state.measured, state.family_rates),
            by_use=use_profiles(state.use) if settings.learning.accounting else {},
            lengths=state.lengths if settings.learning.knows_lengths else {},
            measured=latest_rates(state.measured),
            steps=state.steps,
            pairs=measured_pairs(knowledge, state.pair_rates),
            out_of_memory=OutOfMemoryPairs.of(state.out_of_memory),
            parts_of_gpu={job.id: part for job in jobs if (part := observed.part_of_gpu(job))},
        )
        longest = settings.learning.longest_probe if settings.learning.accounting else 0.0
        probes = probe_profiles(observed, managed, {job.id for job in jobs}, known, state, longest=longest)
        guards = GuardContext(observed, state, settings, known)
        situation = Situation(
            snapshot=observed,
            jobs=tuple(jobs),
            knowledge=replace(
                known,
                own={**known.own, **with_memory_in_use(known, due)},
                by_use={**known.by_use, **probes},
            ),
            non_preemptible={checkpoint.job: checkpoint.keep_reason(observed.time) for checkpoint in checkpoints}
            | guarded_jobs(jobs, guards)
            | contested_jobs(observed, jobs, unmanaged.keys() | state.let_go, open_nodes)
            | leaving_jobs(state.starting)
            | refusals.kept_jobs(jobs, state),
            open_nodes=open_nodes,
            max_moves=0 if starts_only else max_moves(settings, len(jobs)),
            restart_cost=settings.guards.restart_cost,
            restart_costs=restart_costs(due, state, settings),
            moves_per_job_day=settings.guards.moves_per_job_day,
            period=settings.rounds.period,
            state=state.policy_state,
            recent_requests=state.usual,
            tickets=settings.tickets,
            preemptible_from=preemptible_from(jobs, guards),
            unmovable=frozenset(job.id for job in due if cannot_move(job, guards)),
            starting={job: start.allocations for job, start in state.starting.items() if not start.gone},
            awaiting=awaiting,
            freeing=freeing_nodes(state.starting),
            unattributed=unattributed,
            starts_only=starts_only,
            idle_last=_idle_last(jobs, state, settings, observed.time),
        )
        decision = decider.decide(situation)
        plan = make_plan(
            situation,
            decision,
            state,
            settings,
            identity,
            mode=settings.rounds.mode,
            ineligible=left_out,
            config_fragments=config_fragments,
        )
        return RoundResult(observed, situation, decision, plan, unmanaged, left_out, starts_only)

    if not starts_only:
        return decide({}, starts_only=False)
    able = [job for job in managed if job.id not in ineligible]
    promised = KeptPromise.of_state(state.policy_state).job
    decided = (decide(later, starts_only=True) for later in refusals.tried_later(able, state, promised))
    result = next(decided)
    if result.decision.full_round_at <= observed.time:
        return decide({}, starts_only=False)
    while not result.starts and (tried_more := next(decided, None)) is not None:
        result = tried_more
    return result
