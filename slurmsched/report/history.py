"""The history of a job: its events and the operations on it, from the database."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import JobId, SynschedError
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.rows import EventRow, JobRow, OperationRow


class JobNotSeenError(SynschedError):
    """No round has seen this job as a managed one."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Events and operations of one job, oldest first. `service` is in GPU-seconds over all its runs."""

    job: JobRow
    service: float
    events: tuple[EventRow, ...]
    operations: tuple[OperationRow, ...]


def job_history(store: ReadOnlyStore, job: JobId) -> JobHistory:
    """The stored history of a job. Raises JobNotSeenError, UnreadableError."""
    row = store.job(job)
    if row is None:
        raise JobNotSeenError(f"job {job} is not known here: 'squeue -j {job}' shows it if it is not managed")
    return JobHistory(row, store.service(job), store.events(job), store.operations(job))


def expand_array(store: ReadOnlyStore, job: JobId) -> tuple[JobId, ...]:
    """The job itself, or for the id of an array its known tasks."""
    return (job,) if store.job(job) is not None else store.array_tasks(job) or (job,)
