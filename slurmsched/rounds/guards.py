"""Which running jobs no round may displace: a table of small guards, first reason wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import CheckpointSignal, Code, Job, JobId, JobState, Memory, Reason, Snapshot
from slurmsched.model.wording import span
from slurmsched.settings.definition import Checkpoint, Settings

__all__ = ["GUARDS", "Guard", "Round", "checkpoint_signal", "fixed", "guarding", "lead_of"]

_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Round:
    """What a guard may look at beside the job."""

    snapshot: Snapshot
    memory: Memory
    settings: Settings


Guard = Callable[[Job, Round], Reason | None]


def fixed(snapshot: Snapshot, jobs: Iterable[Job], memory: Memory, settings: Settings) -> dict[JobId, Reason]:
    """The running ones among `jobs` that must not be displaced, each with the first guard's reason."""
    at_hand = Round(snapshot, memory, settings)
    reasons = ((job.id, _first(job, at_hand)) for job in jobs if _runs(job))
    return {job: reason for job, reason in reasons if reason is not None}


def _first(job: Job, at_hand: Round) -> Reason | None:
    return next((reason for guard in GUARDS.values() if (reason := guard(job, at_hand)) is not None), None)


def guarding(job: Job, at_hand: Round) -> dict[str, Reason]:
    """Every guard that protects this running job now, by name."""
    said = {name: guard(job, at_hand) for name, guard in GUARDS.items()}
    return {name: reason for name, reason in said.items() if reason is not None}


def checkpoint_signal(job: Job) -> CheckpointSignal | None:
    """The signal that makes the job save itself; None where it named none."""
    signal = job.hints.checkpoint
    return None if signal is CheckpointSignal.NONE else signal


def lead_of(job: Job, checkpoint: Checkpoint) -> int:
    """Seconds between the checkpoint signal and the requeue; 0 for a job that named no signal."""
    if checkpoint_signal(job) is None:
        return 0
    wanted = checkpoint.lead if job.hints.lead is None else job.hints.lead
    return round(min(wanted, checkpoint.longest_lead))


def _runs(job: Job) -> bool:
    return job.state is JobState.RUNNING


def _no_requeue(job: Job, _: Round) -> Reason | None:
    return None if job.requeue else Reason(Code.NO_REQUEUE)


def _not_batch(job: Job, _: Round) -> Reason | None:
    return None if job.batch else Reason(Code.NOT_BATCH)


def _asked_to_stay(job: Job, _: Round) -> Reason | None:
    return Reason(Code.ASKED_TO_STAY) if job.hints.move is False else None


def _no_checkpoint(job: Job, at_hand: Round) -> Reason | None:
    required = at_hand.settings.guards.require_checkpoint
    return Reason(Code.NO_CHECKPOINT) if required and checkpoint_signal(job) is None else None


def _min_run_time(job: Job, at_hand: Round) -> Reason | None:
    minimum = at_hand.settings.guards.min_run_time
    if job.run_time >= minimum:
        return None
    return Reason(Code.MIN_RUN_TIME, {"run": span(job.run_time), "minimum": span(minimum)})


def _exempt_time(job: Job, at_hand: Round) -> Reason | None:
    partitions = (at_hand.snapshot.partition.get(name) for name in job.partitions)
    minimum = max((partition.preempt_exempt_time for partition in partitions if partition), default=0)
    return Reason(Code.EXEMPT_TIME, {"minimum": span(minimum)}) if job.run_time < minimum else None


def _moves_spent(job: Job, at_hand: Round) -> Reason | None:
    since = at_hand.snapshot.time - _DAY
    count = sum(at > since for at in at_hand.memory.moves.get(job.id, ()))
    return (
        Reason(Code.JOB_MOVES_SPENT, {"count": count}) if count >= at_hand.settings.guards.moves_per_job_day else None
    )


def _ends_soon(job: Job, at_hand: Round) -> Reason | None:
    left = _time_left(job, at_hand.memory)
    pays = at_hand.settings.guards.restart_cost + lead_of(job, at_hand.settings.checkpoint)
    return Reason(Code.ENDS_SOON, {"left": span(left)}) if left is not None and left < pays else None


def _time_left(job: Job, memory: Memory) -> float | None:
    """Seconds until its time limit, or until the run time its owner expects, whichever is sooner.

    An expectation that has been exceeded says nothing: a short `duration=` must not protect a job for ever.
    """
    limit = None if job.time_limit is None else max(0.0, job.time_limit - job.run_time)
    attained = memory.service.get(job.id, 0.0) / job.gpus if job.gpus else 0.0
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
"""Every guard by name, in the order in which their reasons are given."""
