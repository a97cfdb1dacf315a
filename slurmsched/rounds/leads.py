"""How long a displaced job is given to write its checkpoint, and what of a plan waits for that beyond the round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurmsched.model import CheckpointSignal, Job, JobId, JobState, Memory, Reason, Snapshot
from slurmsched.rounds.guards import checkpoint_signal, lead_of
from slurmsched.rounds.notified import Awaited, has_saved
from slurmsched.rounds.seating import Seating, Start
from slurmsched.settings.definition import Settings

__all__ = ["Leads", "later_round"]


@dataclass(frozen=True, slots=True)
class Leads:
    """The leads of one round. A job that was told in an earlier one, and has had its time, is not told again."""

    snapshot: Snapshot
    memory: Memory
    settings: Settings

    def signal(self, job: Job) -> CheckpointSignal | None:
        """The signal to send before the job is requeued; None where there is none, or it has been sent."""
        return None if has_saved(job, self.snapshot, self.memory, self.settings) else checkpoint_signal(job)

    def seconds(self, job: Job) -> int:
        """Between that signal and the requeue."""
        return 0 if self.signal(job) is None else lead_of(job, self.settings.checkpoint)

    def is_long(self, job: Job) -> bool:
        """Whether it is longer than a round waits for anything."""
        return self.seconds(job) > self.settings.rounds.settle_timeout


def later_round(seating: Seating, leads: Leads) -> Seating:
    """The seating without the starts that have to wait for a long lead: this round only notifies the jobs in their way.

    Nobody else is displaced for such a start yet.
    """
    long = {job for job in seating.leaving if leads.is_long(leads.snapshot.job[job])}
    if not long:
        return seating
    later = [start for start in seating.starts if long.intersection(start.gone)]
    starts = tuple(start for start in seating.starts if not long.intersection(start.gone))
    told = {job: _saving(leads, job, later) for job in seating.leaving if job in long}
    needed = {job for start in starts for job in start.gone}
    return replace(
        seating,
        starts=starts,
        leaving=tuple(job for job in seating.leaving if job in needed),
        deferred={**seating.deferred, **{start.job.id: _why(start, told, leads.snapshot.time) for start in later}},
        notified={job: own.newcomers for job, own in told.items()},
    )


def _saving(leads: Leads, job_id: JobId, later: list[Start]) -> Awaited:
    newcomers = tuple(start.job.id for start in later if job_id in start.gone)
    return Awaited(job_id, newcomers, leads.snapshot.time + leads.seconds(leads.snapshot.job[job_id]))


def _why(start: Start, told: dict[JobId, Awaited], now: float) -> Reason:
    """What is said of a job that starts later, or that moves later."""
    if start.job.state is JobState.RUNNING and start.job.id in told:
        return told[start.job.id].stays(now)
    return max((told[job] for job in start.gone if job in told), key=lambda own: own.due).waits(now)
