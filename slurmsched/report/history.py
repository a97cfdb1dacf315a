"""What happened to a job, and what was done to it, from the database."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import JobId, SynschedError
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.rows import EventRow, JobRow, OperationRow


class JobNotSeenError(SynschedError):
    """No round has seen this job as one of ours."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """One job's past, oldest first. `service` is in GPU-seconds over all its runs."""

    job: JobRow
    service: float
    events: tuple[EventRow, ...]
    operations: tuple[OperationRow, ...]


def job_history(store: ReadOnlyStore, job: JobId) -> JobHistory:
    """All that is kept of a job. Raises UnknownJobError."""
    row = store.job(job)
    if row is None:
        raise JobNotSeenError(f"job {job} is not known here: 'squeue -j {job}' shows it if it is not managed")
    return JobHistory(row, store.service(job), store.events(job), store.operations(job))


def expand_array(store: ReadOnlyStore, job: JobId) -> tuple[JobId, ...]:
    """The job itself; of an array, named without a task, every task that was seen."""
    return (job,) if store.job(job) is not None else store.array_tasks(job) or (job,)
