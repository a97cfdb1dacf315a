"""Gandiva_fair's state between rounds: passes and assigned pools of jobs, accounts of users. JSON-safe.

The state comes from a database that other programs may have written: invalid values are ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurmsched.model import Job, JobId, JobState
from slurmsched.policies.gandiva_fair.problem import MIN_TICKETS, RunnableJob, StrideProblem
from slurmsched.policies.gandiva_fair.trading import Entitlements
from slurmsched.policies.state import Account, TicketAccounts, stored


@dataclass(frozen=True, slots=True)
class PassRecord:
    """A job's pass in seconds, its attained GPU-seconds, and its assigned pool as `node type` (empty for none)."""

    pass_value: float = field(metadata=stored("pass"))
    attained: float
    assigned_pool: str = field(metadata=stored("home"))


@dataclass(frozen=True, slots=True)
class GandivaFairState(TicketAccounts):
    """The accounts, the records of jobs, and the highest rates measured (`best_rates`), by `model type`."""

    jobs: Mapping[JobId, PassRecord] = field(default_factory=dict, metadata=stored(columns=True))
    best_rates: Mapping[str, float] = field(default_factory=dict, metadata=stored("best"))
    saved_moves: float = 0.0
    """Moves that earlier rounds left unused, no more than the widest gang has GPUs."""


_EPSILON: Final = 1e-9
_SHORTFALL_ROUNDS: Final = 8.0
"""A shortfall of a GPU type is capped at what the user is due in this many rounds."""

_LONGEST_LAG: Final = 43200.0
"""No user is further behind or ahead: a share that nobody can have is not made up for ever, and whoever had too much
waits no longer for it to be forgotten."""

_LONGEST_GAP_ROUNDS: Final = 8.0
"""Rounds that may fail or be skipped in between without a gap in the accounts."""

ReceivedService = Mapping[tuple[str, str], float]
"""GPU-seconds by user and type."""


def _received_since(
    runnable_jobs: Iterable[RunnableJob], state: GandivaFairState, attained_by: Mapping[JobId, float]
) -> ReceivedService:
    """Returns the GPU-seconds that the jobs attained since the last round, on the type of their assigned pools.

    They are measured rather than planned, so a skipped round loses nothing.
    """
    received = defaultdict[tuple[str, str], float](float)
    for runnable in runnable_jobs:
        before = state.jobs.get(runnable.job.id)
        if before is None:
            continue
        attained = max(0.0, attained_by.get(runnable.job.id, 0.0) - before.attained)
        gpu_type = before.assigned_pool.rpartition(" ")[2]
        if attained:
            received[runnable.job.user, gpu_type] += attained
    return received


def compute_shortfalls(
    problem: StrideProblem, entitlements: Entitlements, state: GandivaFairState
) -> Mapping[str, Mapping[str, float]]:
    """Returns by user and type the GPU-seconds by which the user received less than due, below zero for more.

    Only the mix of types counts: a shortfall that is equal on all types cannot be mended by another pool.
    """
    elapsed, shortfalls = _elapsed(problem, state), dict[str, dict[str, float]]()
    if len(entitlements.types) == 1:
        return shortfalls
    anywhere = [
        runnable for runnable, free in zip(problem.runnable_jobs, entitlements.runs_anywhere, strict=True) if free
    ]
    received = _received_since(anywhere, state, problem.situation.knowledge.service) if elapsed else {}
    for user, held in entitlements.holdings.items():
        before = state.accounts.get(user, Account()).shortfall
        late = {
            gpu_type: before.get(gpu_type, 0.0) + gpus * elapsed - received.get((user, gpu_type), 0.0)
            for gpu_type, gpus in held.items()
        }
        alike = sum(late.values()) / max(sum(held.values()), _EPSILON)
        user_shortfalls = shortfalls[user] = {}
        for gpu_type, gpus in held.items():
            limit = _SHORTFALL_ROUNDS * problem.situation.period * max(gpus, 1.0)
            user_shortfalls[gpu_type] = max(-limit, min(limit, late[gpu_type] - alike * gpus))
    return shortfalls


def update_accounts(
    problem: StrideProblem,
    entitlements: Entitlements,
    state: GandivaFairState,
    shortfalls: Mapping[str, Mapping[str, float]],
) -> Mapping[str, Account]:
    """Returns the account of every user who has jobs, and of those without jobs who are still ahead.

    Nothing is due to a user all of whose jobs this round leaves out, but the account lasts. It outlasts the last job by
    as long as the user is ahead, so that this is not forgotten between two jobs.
    """
    elapsed, accounts = _elapsed(problem, state), dict[str, Account]()
    received = _received_since(problem.runnable_jobs, state, problem.situation.knowledge.service) if elapsed else {}
    for user in dict.fromkeys(runnable.job.user for runnable in problem.runnable_jobs):
        before, worth = state.accounts.get(user, Account()), entitlements.speedups.get(user, {})
        held = dict(entitlements.holdings.get(user, {}))
        for gpu_type, gpus in entitlements.confined_holdings.get(user, {}).items():
            held[gpu_type] = held.get(gpu_type, 0.0) + gpus
        # what jobs hold beyond their user's part, and cannot be taken from them, is not due
        due = entitlements.fair_parts.get(user, 1.0) * sum(
            gpus * worth.get(gpu_type, 1.0) for gpu_type, gpus in held.items()
        )
        gained = sum(received.get((user, gpu_type), 0.0) * worth.get(gpu_type, 1.0) for gpu_type in entitlements.types)
        accounts[user] = Account(
            due=before.due + due * elapsed,
            received=before.received + gained,
            holdings={gpu_type: round(gpus, 6) for gpu_type, gpus in held.items() if gpus > 0},
            speedups=dict(worth),
            shortfall={gpu_type: round(late, 3) for gpu_type, late in shortfalls.get(user, {}).items()},
            lag=_lag(before.lag, due, elapsed, gained),
        )
    left_out = {job.user for job in left_out_jobs(problem, state)}
    for user, account in state.accounts.items():
        if user in left_out:
            accounts.setdefault(user, account)
        elif user not in accounts and account.lag + elapsed < 0:
            lag = round(account.lag + elapsed, 3)
            accounts[user] = Account(due=account.due, received=account.received, lag=lag)
    return accounts


def left_out_jobs(problem: StrideProblem, state: GandivaFairState) -> Sequence[Job]:
    """Returns the jobs of earlier rounds that are still there but do not take part in this one: they are about to start
    on GPUs that are free, or their last run is ending. They keep their passes: a job that had to begin anew whenever
    its turn comes would never make up for what it is behind."""
    decided, known = {runnable.job.id for runnable in problem.runnable_jobs}, problem.situation.snapshot.jobs_by_id
    jobs = [known[job] for job in state.jobs if job not in decided and job in known]
    return [job for job in jobs if job.state is not JobState.FINISHED]


def _lag(before: float, due: float, elapsed: float, gained: float) -> float:
    """Returns the seconds that a user is behind; `due` is per second, `gained` since the last round."""
    behind = before + (elapsed - gained / due if due > _EPSILON else 0.0)
    return round(max(-_LONGEST_LAG, min(_LONGEST_LAG, behind)), 3)


def _elapsed(problem: StrideProblem, state: GandivaFairState) -> float:
    """Returns the seconds since the last round by tickets; 0 if that is so long ago that others scheduled meanwhile, or
    nobody did: for that time nobody is due anything."""
    elapsed = 0.0 if state.time is None else max(0.0, problem.situation.snapshot.time - state.time)
    return elapsed if elapsed <= _LONGEST_GAP_ROUNDS * problem.situation.period else 0.0


def best_rates(
    state: GandivaFairState, jobs: Iterable[Job], measured: Mapping[str, Mapping[str, float]]
) -> Mapping[str, float]:
    """Returns the highest rates measured so far, by `model type`, of models that still have jobs."""
    models = {job.id: job.hints.model for job in jobs if job.hints.model}
    alive = frozenset(models.values())
    best = {key: rate for key, rate in state.best_rates.items() if key.rpartition(" ")[0] in alive}
    for job, model in models.items():
        for gpu_type, rate in measured.get(job, {}).items():
            best[f"{model} {gpu_type}"] = max(best.get(f"{model} {gpu_type}", 0.0), rate)
    return best


def join_users(runnable_jobs: Sequence[RunnableJob], state: GandivaFairState) -> None:
    """Lets every new job begin at the lowest pass of its user's jobs; without any, at the lowest of all."""
    known = [runnable for runnable in runnable_jobs if runnable.job.id in state.jobs]
    lowest = min((runnable.pass_value for runnable in known), default=0.0)
    by_user: dict[str, float] = {}
    for runnable in known:
        by_user[runnable.job.user] = min(runnable.pass_value, by_user.get(runnable.job.user, runnable.pass_value))
    for runnable in runnable_jobs:
        if runnable.job.id not in state.jobs:
            runnable.pass_value = by_user.get(runnable.job.user, lowest)


def advance_passes(
    runnable_jobs: Iterable[RunnableJob], state: GandivaFairState, attained: Mapping[JobId, float]
) -> None:
    """Adds to every job's pass the GPU-seconds it attained since the last round over the GPUs of its tickets."""
    for runnable in runnable_jobs:
        before = state.jobs.get(runnable.job.id)
        if before is not None:
            gained = max(0.0, attained.get(runnable.job.id, 0.0) - before.attained)
            runnable.pass_value = before.pass_value + gained / max(runnable.tickets, MIN_TICKETS)
