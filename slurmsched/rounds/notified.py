"""Checkpoints that take longer than a round waits: who was told to write one, until when, and for whom.

The round that notifies ends. Until the checkpoint is due, or reported written, the job stays where it is and the
newcomers that it gives way to get nothing else; then all of them are decided on again, and no second signal is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from slurmsched.model import Code, Job, JobId, JobState, Memory, Notified, Reason, Snapshot
from slurmsched.rounds.guards import lead_of
from slurmsched.rounds.wording import moment
from slurmsched.settings.definition import Settings

__all__ = ["NEWCOMERS", "Awaited", "awaited", "has_saved"]

NEWCOMERS: Final = "newcomers"
"""In the reason of a NOTIFY: whom the job is to give way to in a later round, with commas between."""

_ROUNDS: Final = 2
"""Periods beyond the lead for which a checkpoint counts as new."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A running job whose checkpoint is due at `due` (unix seconds), and the jobs that get its place then."""

    job: JobId
    newcomers: tuple[JobId, ...]
    due: float

    def stays(self, now: float) -> Reason:
        """Why it is not displaced now."""
        details = {"when": moment(self.due, now), NEWCOMERS: _listed(self.newcomers)}
        return Reason(Code.WRITES_CHECKPOINT, details)

    def waits(self, now: float) -> Reason:
        """Why a newcomer does not start now."""
        return Reason(Code.AWAITS_CHECKPOINT, {"jobs": _listed((self.job,)), "when": moment(self.due, now)})


def awaited(snapshot: Snapshot, memory: Memory, settings: Settings) -> tuple[Awaited, ...]:
    """The checkpoints that are still awaited. One whose newcomers have all gone is awaited no more."""
    return tuple(_awaited(snapshot, memory, settings))


def _awaited(snapshot: Snapshot, memory: Memory, settings: Settings) -> Iterator[Awaited]:
    for name, told in memory.notified.items():
        job = snapshot.job.get(name)
        if job is None or told.saved:
            continue
        due = _due(job, told, settings)
        newcomers = tuple(other for other in told.newcomers if other == name or _waits(snapshot, other))
        if newcomers and told.at <= snapshot.time < due:
            yield Awaited(name, newcomers, due)


def has_saved(job: Job, snapshot: Snapshot, memory: Memory, settings: Settings) -> bool:
    """Whether the job was told to write its checkpoint and has had its time for it, a short while ago."""
    told = memory.notified.get(job.id)
    if told is None:
        return False
    due = _due(job, told, settings)
    return (told.saved or due <= snapshot.time) and snapshot.time < due + _ROUNDS * settings.rounds.period


def _due(job: Job, told: Notified, settings: Settings) -> float:
    return told.at + lead_of(job, settings.checkpoint)


def _waits(snapshot: Snapshot, job_id: JobId) -> bool:
    job = snapshot.job.get(job_id)
    return job is not None and job.state is JobState.PENDING


def _listed(jobs: tuple[JobId, ...]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
