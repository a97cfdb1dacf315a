"""What happened to a job, and what was done to it, from the database."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import JobId, SynschedError
from slurmsched.store.reading import Reading
from slurmsched.store.rows import EventRow, JobRow, OperationRow

__all__ = ["History", "UnknownJobError", "history", "known_jobs"]


class UnknownJobError(SynschedError):
    """No round has seen this job as one of ours."""


@dataclass(frozen=True, slots=True)
class History:
    """One job's past, oldest first. `service` is in GPU-seconds over all its runs."""

    job: JobRow
    service: float
    events: tuple[EventRow, ...]
    operations: tuple[OperationRow, ...]


def history(reading: Reading, job: JobId) -> History:
    """All that is kept of a job. Raises UnknownJobError."""
    row = reading.job(job)
    if row is None:
        raise UnknownJobError(f"job {job} is not known here: 'squeue -j {job}' shows it if it is not managed")
    return History(row, reading.service(job), reading.events(job), reading.operations(job))


def known_jobs(reading: Reading, job: JobId) -> tuple[JobId, ...]:
    """The job itself; of an array, named without a task, every task that was seen."""
    return (job,) if reading.job(job) is not None else reading.array(job) or (job,)
