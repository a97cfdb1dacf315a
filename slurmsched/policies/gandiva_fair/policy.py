"""Gandiva_fair as a policy (Chaudhary et al., EuroSys 2020, by the slides of their talk): every user gets the part of
the cluster's throughput that the user's tickets stand for, on any GPU types and with jobs of any size.

Every local job is assigned to a pool. Split stride is fair across pools while their load, in tickets per GPU, is
balanced (slide 10), and the balancer assigns a user's jobs to the GPU types that the user holds.

On Slurm a suspended job keeps its GPUs, so a slice ends with the checkpoint signal and a requeue. A waiting job can
resume in any pool, so only waiting jobs are reassigned, and a running job is moved only to idle GPUs of a faster type.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from operator import mul
from typing import Final

from slurmsched.model import Job, JobId, JobState, RankedJob, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.eligibility import ClosedNodes
from slurmsched.policies.cluster.resources import Allocation
from slurmsched.policies.gandiva_fair.accounts import (
    GandivaFairState,
    PassRecord,
    advance_passes,
    best_rates,
    compute_shortfalls,
    join_users,
    left_out_jobs,
    update_accounts,
)
from slurmsched.policies.gandiva_fair.balancing import LoadBalancer
from slurmsched.policies.gandiva_fair.problem import MIN_TICKETS, RunnableJob, StrideProblem
from slurmsched.policies.gandiva_fair.trading import Entitlements, compute_entitlements
from slurmsched.policies.sizes import Proportional, Sizing
from slurmsched.policies.stages import Entitlement, PreemptionRule, Situation
from slurmsched.policies.state import decode_state, encode_state

_EPSILON: Final = 1e-6


@dataclass(frozen=True, slots=True)
class GandivaTickets:
    """Entitlement by tickets: GPUs by tickets and trades, and the order by pass, which is what a job had of them.

    A gang that fits into one pool, sized by `sizing`, has a home there. Running jobs are protected within their slice.
    """

    sizing: Sizing = field(default_factory=Proportional)
    name: str = "pass"

    def __call__(self, situation: Situation) -> Entitlement:
        state, problem = decode_state(GandivaFairState, situation.state), StrideProblem(situation, self.sizing)
        best = best_rates(state, (*situation.jobs, *situation.awaiting), situation.knowledge.measured)
        entitlements = compute_entitlements(problem, best)
        for runnable, tickets in zip(problem.runnable_jobs, entitlements.tickets.tolist(), strict=True):
            runnable.tickets = tickets
        advance_passes(problem.runnable_jobs, state, situation.knowledge.service)
        shortfalls = compute_shortfalls(problem, entitlements, state)
        accounts = update_accounts(problem, entitlements, state, shortfalls)
        lags = {user: account.lag for user, account in accounts.items()}
        join_users(problem.runnable_jobs, state)
        passes = _compute_turns(problem, entitlements, lags)
        _assign_pools(problem, entitlements, state, shortfalls, passes)
        queue = sorted(
            problem.placeable_jobs, key=lambda runnable: (passes[runnable.job.id], runnable.allocation is None)
        )
        slices = _slice_lengths(queue, passes, situation)
        turns = _Turns(problem, queue, passes)
        faster_types, rates = problem.faster_idle_types()

        def next_state(victims: Mapping[JobId, JobId], allocations: Mapping[JobId, Allocation]) -> Mapping[str, object]:
            jobs = _pass_records(problem, allocations)
            jobs |= {job.id: state.jobs[job.id] for job in left_out_jobs(problem, state)}
            widest = max((runnable.size for runnable in queue), default=0)
            saved = max(0.0, min(state.saved_moves + situation.max_moves - len(victims), widest))
            return encode_state(
                GandivaFairState(situation.snapshot.time, accounts, entitlements.trades, jobs, best, saved)
            )

        return Entitlement(
            order=_PassOrder(turns.ranking(), passes, queue, self.name),
            gpu_types=faster_types,
            rates=rates,
            homes={runnable.job.id: runnable.assigned_pool for runnable in queue if runnable.assigned_pool >= 0},
            passes=passes,
            preferred_types=entitlements.types,
            protected=_within_slice(queue, slices, situation),
            postponed=_postponed_newcomers(problem, entitlements, lags),
            undue=_undue_jobs(queue, entitlements),
            saved_moves=int(state.saved_moves),
            slices=slices,
            why_start=turns.why_start,
            why_end=turns.why_end,
            why_wait=turns.why_wait,
            next_state=next_state,
            resources=problem.resources,
        )


@dataclass(frozen=True, slots=True)
class _PassOrder:
    """The lowest pass first; of equals the one that runs.

    A newcomer may preempt a job with GPUs that is ahead by more than the least by which a slice advances any job: of
    jobs that are alike, none is due again as soon as it was preempted.
    """

    ranking: tuple[RankedJob, ...]
    passes: Mapping[JobId, float]
    queue: Sequence[RunnableJob]
    name: str

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:  # noqa: ARG002 the ranking is of this situation
        return self.ranking

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        @cache
        def margin() -> float:
            return min(runnable.stride(runnable.min_quantum(situation)) for runnable in self.queue)

        def may_preempt(newcomer: Job, running: Job) -> bool:
            if running.id not in self.passes:  # without GPUs
                return False
            return self.passes[running.id] - self.passes[newcomer.id] > margin()

        return may_preempt


def _compute_turns(
    problem: StrideProblem, entitlements: Entitlements, lags: Mapping[str, float]
) -> Mapping[JobId, float]:
    """Return when the turn of each job comes, in seconds of its user's share from now; lower is sooner.

    Users and jobs are two levels of stride, as tickets of users are divided among their jobs (slide 7). The jobs of a
    user come one after another: those within their slice, then by pass. Each comes as much later as the GPUs before it
    take of the share in a mean slice, those that cannot be taken from the user among them, and sooner by what the user
    is behind. Half of its own slice rounds what it gets to the nearest slice; the first slice of the next job of a user
    who is not ahead comes without.
    """
    situation, by_user = problem.situation, defaultdict[str, list[tuple[bool, float, bool, int]]](list)
    attained = situation.knowledge.attained_gpu_seconds
    jobs, turns = problem.runnable_jobs, dict[JobId, float]()
    quanta = [runnable.min_quantum(situation) for runnable in jobs]
    for index, (runnable, quantum) in enumerate(zip(jobs, quanta, strict=True)):
        if runnable.allocation is not None and runnable.job.id in situation.unmovable:
            turns[runnable.job.id] = -lags[runnable.job.user]
            continue
        kept = _has_just_begun(runnable, _shortest_run(runnable, quantum, situation), situation)
        by_user[runnable.job.user].append((not kept, runnable.pass_value, runnable.allocation is None, index))
    tickets = [runnable.tickets for runnable in jobs]
    mean_quantum = sum(map(mul, tickets, quanta)) / max(sum(tickets), MIN_TICKETS)
    for user, own in by_user.items():
        share, before = max(entitlements.user_gpus.get(user, 0.0), MIN_TICKETS), entitlements.held_gpus.get(user, 0.0)
        is_next = lags[user] >= 0
        for *_, index in sorted(own):
            runnable = jobs[index]
            half = runnable.size * quanta[index] / 2
            if runnable.allocation is None:
                half, is_next = 0.0 if is_next and not attained(runnable.job) else half, False
            turns[runnable.job.id] = (before * mean_quantum + half) / share - lags[user]
            before += runnable.size if runnable.tickets > MIN_TICKETS else 0
    return turns


def _shortest_run(runnable: RunnableJob, quantum: float, situation: Situation) -> float:
    """Return the seconds that the present run lasts at least: a slice, or, until the job has had a whole one, as long
    as is worth a restart."""
    earlier = situation.knowledge.attained_gpu_seconds(runnable.job) / runnable.size - runnable.job.run_time
    return quantum if earlier >= quantum else runnable.paying_quantum(situation)


def _has_just_begun(runnable: RunnableJob, shortest: float, situation: Situation) -> bool:
    """Whether the present run is shorter than the `shortest` in seconds, to the nearest round."""
    return runnable.allocation is not None and runnable.job.run_time + situation.period / 2 < shortest


def _just_begun(problem: StrideProblem) -> frozenset[JobId]:
    """Return the running jobs that this round leaves alone however short their slices are cut."""
    situation = problem.situation
    return frozenset(
        runnable.job.id
        for runnable in problem.runnable_jobs
        if runnable.allocation is not None
        and _has_just_begun(runnable, _shortest_run(runnable, runnable.min_quantum(situation), situation), situation)
    )


def _slice_lengths(
    queue: Sequence[RunnableJob], turns: Mapping[JobId, float], situation: Situation
) -> dict[JobId, float]:
    """Return the shortest slice of each job in seconds.

    Until a job has had a whole one, it gives way after what is worth a restart to a job that never ran and whose turn
    comes before it, so that all jobs start soon. A run that is shorter than that comes before all others of its user
    only until then.
    """
    newcomers, anywhere = defaultdict[int, float](lambda: inf), inf
    for runnable in queue:
        if runnable.waits and not situation.knowledge.attained_gpu_seconds(runnable.job):
            turn = turns[runnable.job.id]
            newcomers[runnable.assigned_pool] = min(newcomers[runnable.assigned_pool], turn)
            anywhere = min(anywhere, turn)
    slices = dict[JobId, float]()
    for runnable in queue:
        quantum, pool = runnable.min_quantum(situation), runnable.assigned_pool
        first = min(newcomers[pool], newcomers[-1]) if pool >= 0 else anywhere
        shortest = _shortest_run(runnable, quantum, situation)
        cut = first < (inf if _has_just_begun(runnable, shortest, situation) else turns[runnable.job.id])
        slices[runnable.job.id] = shortest if cut else quantum
    return slices


def _within_slice(
    queue: Sequence[RunnableJob], slices: Mapping[JobId, float], situation: Situation
) -> dict[JobId, Reason]:
    """Return the running jobs whose slice is not over, to the nearest round."""
    protected: dict[JobId, Reason] = {}
    for runnable in queue:
        quantum, job = slices[runnable.job.id], runnable.job
        if _has_just_begun(runnable, quantum, situation):
            details = {"run": format_duration(job.run_time), "minimum": format_duration(quantum)}
            protected[job.id] = Reason(ReasonCode.MIN_RUN_TIME, details)
    return protected


def _postponed_newcomers(
    problem: StrideProblem, entitlements: Entitlements, lags: Mapping[str, float]
) -> dict[JobId, Reason]:
    """Return which of the waiting jobs that could not be preempted any more are postponed while jobs of others wait.

    Their users are charged for what such jobs hold, and never give back what they have too much. A user who is not
    ahead may have one that is larger than the share.
    """
    postponed, held, waiting = dict[JobId, Reason](), dict(entitlements.held_gpus), Counter[str]()
    unmovable = problem.situation.unmovable
    for runnable in problem.runnable_jobs:
        waiting[runnable.job.user] += runnable.size * runnable.waits
        if runnable.is_awaiting and runnable.job.id in unmovable:
            held[runnable.job.user] = held.get(runnable.job.user, 0.0) + runnable.size
    of_all = waiting.total()
    for runnable in sorted(problem.placeable_jobs, key=lambda runnable: runnable.pass_value):
        job, user = runnable.job, runnable.job.user
        others_wait = entitlements.contended and of_all > waiting[user]
        if runnable.allocation is not None or job.id not in unmovable or not others_wait:
            continue
        has, due = held.get(user, 0.0), entitlements.user_gpus[user] + _EPSILON
        if has + runnable.size > due and (has > 0 or lags[user] < 0):
            details = {"user": user, "held": f"{has:.0f}", "due": f"{due:.2f}"}
            postponed[job.id] = Reason(ReasonCode.SHARE_HELD, details)
        else:
            held[user] = has + runnable.size
    return postponed


def _undue_jobs(queue: Sequence[RunnableJob], entitlements: Entitlements) -> frozenset[JobId]:
    """Return the jobs of users whose whole share is held by jobs that cannot be taken from them, while others wait."""
    held, share = entitlements.held_gpus, entitlements.user_gpus
    holders = {user for user, gpus in held.items() if gpus > 0 and share.get(user, 0.0) <= gpus + _EPSILON}
    others_wait = any(runnable.waits and runnable.job.user not in holders for runnable in queue)
    return frozenset(runnable.job.id for runnable in queue if others_wait and runnable.job.user in holders)


class _Turns:
    """What people are told about the turns of the jobs in `queue`, which is in order of pass."""

    def __init__(self, problem: StrideProblem, queue: Sequence[RunnableJob], passes: Mapping[JobId, float]) -> None:
        self._problem, self._queue = problem, queue
        self._closed_nodes = ClosedNodes(problem.situation.snapshot)
        first: dict[int, float] = {}
        for runnable in queue:
            first.setdefault(runnable.assigned_pool, passes[runnable.job.id])
        self._texts = {
            runnable.job.id: (
                format_duration(max(0.0, passes[runnable.job.id] - first[runnable.assigned_pool])),
                f"{runnable.tickets:.2f}",
            )
            for runnable in queue
        }
        """How far a job's pass is above the lowest in its pool, and the GPUs it is entitled to."""

    def ranking(self) -> tuple[RankedJob, ...]:
        """Return all jobs of the situation, those that end last."""
        ending = (job.id for job in self._problem.situation.jobs if job.state is JobState.COMPLETING)
        return (
            *(RankedJob(job, f"{ahead} ahead, entitled to {due} GPUs") for job, (ahead, due) in self._texts.items()),
            *(RankedJob(job, "ends") for job in ending),
        )

    def why_start(self, job: Job) -> Reason:
        ahead, due = self._texts[job.id]
        return Reason(ReasonCode.TURN, {"ahead": ahead, "due": due})

    def why_end(self, job: Job, newcomer: Job) -> Reason:
        ahead, due = self._texts[job.id]
        details = {
            "run": format_duration(job.run_time),
            "ahead": ahead,
            "due": due,
            "newcomer": f"job {newcomer.id} of {newcomer.user}",
            "behind": self._texts[newcomer.id][0],
        }
        return Reason(ReasonCode.SLICE_ENDED, details)

    def why_wait(self, allocations: Mapping[JobId, Allocation]) -> dict[JobId, Reason]:
        """Return why the jobs without an allocation wait: for their turn in the queue of their pool, or for room."""
        before, reasons = Counter[int](), dict[JobId, Reason]()
        names = [self._problem.pools.node(pool).name for pool in range(len(self._problem.pools))]
        for runnable in self._queue:
            job, pool = runnable.job.id, _home_after(runnable, allocations)
            if job not in allocations:
                ahead, due = self._texts[job]
                reasons[job] = (
                    self._no_home_reason(runnable)
                    if pool < 0 or not before[pool]
                    else Reason(
                        ReasonCode.AWAITS_TURN,
                        {"count": before[pool], "node": names[pool], "due": due, "ahead": ahead},
                    )
                )
            before[pool] += 1
        return reasons

    def _no_home_reason(self, runnable: RunnableJob) -> Reason:
        """Return why a job waits that has no pool or is the first there: it needs several nodes, or fits nowhere."""
        if what := self._problem.empty_cluster.unmet_demand(runnable.job):
            return Reason(ReasonCode.NEVER_FITS, {"what": what})
        no_room = Reason(ReasonCode.NO_ROOM, {"gpus": runnable.job.original_request.gpus})
        return self._closed_nodes.reason(runnable.job, fits=bool(runnable.demand.single_node)) or no_room


def _home_after(runnable: RunnableJob, allocations: Mapping[JobId, Allocation]) -> int:
    """Return the pool of a job after the round: it stays assigned to the one that it was placed in."""
    held = allocations.get(runnable.job.id)
    return held.pools[0] if held is not None and runnable.is_local else runnable.assigned_pool


def _assign_pools(
    problem: StrideProblem,
    entitlements: Entitlements,
    state: GandivaFairState,
    shortfalls: Mapping[str, Mapping[str, float]],
    turns: Mapping[JobId, float],
) -> None:
    """Assign jobs without a pool, and balance the pools."""
    pools = problem.pools
    names = {f"{pools.node(pool).name} {pools.gpu_types[pool]}": pool for pool in range(len(pools))}
    assigned, newcomers = list[RunnableJob](), list[RunnableJob]()
    for runnable in problem.runnable_jobs:
        before = state.jobs.get(runnable.job.id)
        if runnable.allocation is None and runnable.is_local and before is not None:
            pool_index = names.get(before.assigned_pool, -1)
            runnable.assigned_pool = pool_index if problem.is_local_pool(runnable.demand, pool_index) else -1
        has_pool = before is not None and (runnable.assigned_pool >= 0 or not runnable.is_local)
        (assigned if has_pool else newcomers).append(runnable)
    balancer = LoadBalancer(problem, entitlements, shortfalls, assigned)
    for runnable in newcomers:
        balancer.assign(runnable)
    balancer.balance([runnable for runnable in assigned if runnable.is_local and runnable.waits])
    balancer.advance_late(problem.runnable_jobs, turns, _just_begun(problem))


def _pass_records(problem: StrideProblem, allocations: Mapping[JobId, Allocation]) -> dict[JobId, PassRecord]:
    """Return the record of every job; for a job on several nodes the pool names only their GPU type."""
    pools, attained = problem.pools, problem.situation.knowledge.attained_gpu_seconds
    names = [f"{pools.node(pool).name} {gpu_type}" for pool, gpu_type in enumerate(pools.gpu_types)]
    records: dict[JobId, PassRecord] = {}
    for runnable in problem.runnable_jobs:
        pool, held = _home_after(runnable, allocations), allocations.get(runnable.job.id) or runnable.allocation
        type_only = f" {pools.gpu_types[held.pools[0]]}" if held and held.pools else ""
        assigned_pool = names[pool] if pool >= 0 else type_only
        records[runnable.job.id] = PassRecord(round(runnable.pass_value, 3), attained(runnable.job), assigned_pool)
    return records
