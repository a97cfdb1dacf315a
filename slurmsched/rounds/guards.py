"""Guards that protect running jobs from preemption: a table of checks, of which the first reason counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode, SchedulerState, Snapshot
from slurmsched.model.reasons import format_duration
from slurmsched.settings.definition import CheckpointSettings, Settings

_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What a guard looks at beside the job."""

    snapshot: Snapshot
    state: SchedulerState
    settings: Settings


Guard = Callable[[Job, GuardContext], Reason | None]


def guarded_jobs(
    snapshot: Snapshot, jobs: Iterable[Job], state: SchedulerState, settings: Settings
) -> dict[JobId, Reason]:
    """The running jobs among `jobs` that must not be preempted, each with the reason of the first guard."""
    context = GuardContext(snapshot, state, settings)
    reasons = ((job.id, _first_reason(job, context)) for job in jobs if _runs(job))
    return {job: reason for job, reason in reasons if reason is not None}


def _first_reason(job: Job, context: GuardContext) -> Reason | None:
    return next((reason for guard in GUARDS.values() if (reason := guard(job, context)) is not None), None)


def guard_reasons(job: Job, context: GuardContext) -> dict[str, Reason]:
    """The reasons of all guards that protect this running job now, by name."""
    reasons = {name: guard(job, context) for name, guard in GUARDS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def checkpoint_lead(job: Job, checkpoint: CheckpointSettings) -> int:
    """Seconds between the checkpoint signal and the requeue; 0 for a job without a signal."""
    if job.hints.checkpoint_signal is None:
        return 0
    requested = checkpoint.lead if job.hints.lead is None else job.hints.lead
    return round(min(requested, checkpoint.longest_lead))


def _runs(job: Job) -> bool:
    return job.state is JobState.RUNNING


def _no_requeue(job: Job, _: GuardContext) -> Reason | None:
    return None if job.requeue else Reason(ReasonCode.NO_REQUEUE)


def _not_batch(job: Job, _: GuardContext) -> Reason | None:
    return None if job.batch else Reason(ReasonCode.NOT_BATCH)


def _asked_to_stay(job: Job, _: GuardContext) -> Reason | None:
    return Reason(ReasonCode.ASKED_TO_STAY) if job.hints.move is False else None


def _no_checkpoint(job: Job, context: GuardContext) -> Reason | None:
    required = context.settings.guards.require_checkpoint
    return Reason(ReasonCode.NO_CHECKPOINT) if required and job.hints.checkpoint_signal is None else None


def _min_run_time(job: Job, context: GuardContext) -> Reason | None:
    minimum = context.settings.guards.min_run_time
    if job.run_time >= minimum:
        return None
    return Reason(ReasonCode.MIN_RUN_TIME, {"run": format_duration(job.run_time), "minimum": format_duration(minimum)})


def _exempt_time(job: Job, context: GuardContext) -> Reason | None:
    partitions = (context.snapshot.partitions_by_name.get(name) for name in job.partitions)
    minimum = max((partition.preempt_exempt_time for partition in partitions if partition), default=0)
    return Reason(ReasonCode.EXEMPT_TIME, {"minimum": format_duration(minimum)}) if job.run_time < minimum else None


def _moves_spent(job: Job, context: GuardContext) -> Reason | None:
    since = context.snapshot.time - _DAY
    count = sum(at > since for at in context.state.moves.get(job.id, ()))
    return (
        Reason(ReasonCode.JOB_MOVES_SPENT, {"count": count})
        if count >= context.settings.guards.moves_per_job_day
        else None
    )


def _ends_soon(job: Job, context: GuardContext) -> Reason | None:
    left = _time_left(job, context.state)
    move_cost = context.settings.guards.restart_cost + checkpoint_lead(job, context.settings.checkpoint)
    return (
        Reason(ReasonCode.ENDS_SOON, {"left": format_duration(left)}) if left is not None and left < move_cost else None
    )


def _time_left(job: Job, state: SchedulerState) -> float | None:
    """Seconds until its time limit or the end of its hint's `duration=`, whichever is sooner; None if neither is known.

    A duration that is exceeded is ignored: a short `duration=` must not protect a job for ever.
    """
    limit = None if job.time_limit is None else max(0.0, job.time_limit - job.run_time)
    attained = state.service.get(job.id, 0.0) / job.gpus if job.gpus else 0.0
    expected = None if job.hints.duration is None else job.hints.duration - max(job.run_time, attained)
    if expected is None or expected <= 0:
        return limit
    return expected if limit is None else min(limit, expected)


GUARDS: Final[Mapping[str, Guard]] = {
    "no-requeue": _no_requeue,
    "not-batch": _not_batch,
    "asked-to-stay": _asked_to_stay,
    "no-checkpoint": _no_checkpoint,
    "min-run-time": _min_run_time,
    "exempt-time": _exempt_time,
    "moves-per-job-day": _moves_spent,
    "ends-soon": _ends_soon,
}
"""The guards by name; of several reasons the first in this order is given."""
