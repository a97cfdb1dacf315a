"""Checkpoints whose lead is longer than a round waits: which jobs write one, until when, and for which newcomers.

The round that sends the signal ends without waiting. Until the checkpoint is due, or is reported as written, the job
keeps its nodes and its newcomers start nowhere. Then all of them are decided again, and no second signal is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from slurmsched.model import Job, JobId, JobState, NotifiedJob, Reason, ReasonCode, SchedulerState, Snapshot
from slurmsched.model.reasons import time_of_day
from slurmsched.rounds.guards import checkpoint_lead
from slurmsched.settings.definition import Settings

NEWCOMERS: Final = "newcomers"
"""Detail in the reason of a NOTIFY: the jobs that it gives way to in a later round, separated by commas."""

_FRESH_PERIODS: Final = 2
"""Periods beyond the lead for which a checkpoint counts as new."""


@dataclass(frozen=True, slots=True)
class AwaitedCheckpoint:
    """A running job whose checkpoint is due at `due` (unix seconds), and the jobs that get its GPUs then."""

    job: JobId
    newcomers: tuple[JobId, ...]
    due: float

    def keep_reason(self, now: float) -> Reason:
        """Why the job is not preempted now."""
        details = {"when": time_of_day(self.due, now), NEWCOMERS: _listed(self.newcomers)}
        return Reason(ReasonCode.WRITES_CHECKPOINT, details)

    def wait_reason(self, now: float) -> Reason:
        """Why a newcomer does not start now."""
        return Reason(ReasonCode.AWAITS_CHECKPOINT, {"jobs": _listed((self.job,)), "when": time_of_day(self.due, now)})


def awaited_checkpoints(snapshot: Snapshot, state: SchedulerState, settings: Settings) -> tuple[AwaitedCheckpoint, ...]:
    """Return the checkpoints that are still awaited; one whose newcomers no longer wait is not."""
    return tuple(_awaited(snapshot, state, settings))


def _awaited(snapshot: Snapshot, state: SchedulerState, settings: Settings) -> Iterator[AwaitedCheckpoint]:
    for name, notice in state.notified.items():
        job = snapshot.jobs_by_id.get(name)
        if job is None or notice.saved:
            continue
        due = _due(job, notice, settings)
        newcomers = tuple(other for other in notice.newcomers if other == name or _waits(snapshot, other))
        if newcomers and notice.at <= snapshot.time < due:
            yield AwaitedCheckpoint(name, newcomers, due)


def has_checkpointed(job: Job, snapshot: Snapshot, state: SchedulerState, settings: Settings) -> bool:
    """Whether the job was notified and its lead ended, or its checkpoint was reported, a short while ago."""
    notice = state.notified.get(job.id)
    if notice is None:
        return False
    due = _due(job, notice, settings)
    return (notice.saved or due <= snapshot.time) and snapshot.time < due + _FRESH_PERIODS * settings.rounds.period


def _due(job: Job, notice: NotifiedJob, settings: Settings) -> float:
    return notice.at + checkpoint_lead(job, settings.checkpoint)


def _waits(snapshot: Snapshot, job_id: JobId) -> bool:
    job = snapshot.jobs_by_id.get(job_id)
    return job is not None and job.state is JobState.PENDING


def _listed(jobs: tuple[JobId, ...]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
