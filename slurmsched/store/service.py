"""What jobs have had: their service, in GPU-seconds for each of their runs, and the times of their evictions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from slurmsched.model import JobId, JobState, Result, Snapshot, Verb
from slurmsched.store.database import Database
from slurmsched.store.rows import DatabaseRow, number, text

DAY: Final = 86400.0

_HOLDING_RESOURCES: Final = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


class AttainedService:
    """Attained service with one row per run, so that a restart neither loses nor doubles any. All methods raise
    StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_runs(self, snapshot: Snapshot) -> None:
        """Bring the runs in the snapshot up to its time; a run that is gone keeps its last value.

        A job without a start time is skipped until Slurm reports one.
        """
        runs = [
            (job.id, job.start_time, gpus * max(job.run_time, 0.0), job.gpu_type_held)
            for job in snapshot.jobs_in_state(*_HOLDING_RESOURCES)
            if job.start_time is not None and (gpus := snapshot.gpus_of(job))
        ]
        self._database.write_many(
            "INSERT INTO service (job, run_started, gpu_seconds, gpu_type) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (job, run_started)"
            " DO UPDATE SET gpu_seconds = MAX(gpu_seconds, excluded.gpu_seconds),"
            " gpu_type = CASE excluded.gpu_type WHEN '' THEN gpu_type ELSE excluded.gpu_type END",
            runs,
        )

    def gpu_seconds_of(self, job: JobId) -> float:
        """GPU-seconds of one job over all its runs."""
        return sum(self.gpu_seconds_by_type((job,)).get(job, {}).values())

    def gpu_seconds_by_type(self, jobs: Iterable[JobId]) -> Mapping[JobId, Mapping[str, float]]:
        """GPU-seconds over all runs by job and GPU type, which is empty for runs of which it is not known; jobs without
        any are absent."""
        runs = self._database.rows_of_jobs(
            "SELECT job, run_started, gpu_seconds, gpu_type FROM service WHERE job IN ({jobs})"
            " ORDER BY job, run_started",
            jobs,
        )
        sums = dict[JobId, dict[str, float]]()
        for job, kind, seconds in self._database.unreadable_rows.parse_each("service", "job", _run, runs):
            of_job = sums.setdefault(job, {})
            of_job[kind] = of_job.get(kind, 0.0) + seconds
        return sums

    def moves(self, at: float, jobs: Iterable[JobId]) -> Mapping[JobId, tuple[float, ...]]:
        """The times of each job's requeues by us in the 24 hours before `at`, in order (unix seconds).

        Those of an older job with the same id do not count, nor times more than a day in the future.
        """
        rows = self._database.rows_of_jobs(
            "SELECT o.id, o.subject, o.finished FROM operations o JOIN jobs j ON j.id = o.subject"
            " WHERE o.subject IN ({jobs}) AND o.verb = ? AND o.result IN (?, ?) AND o.finished > ? AND o.finished < ?"
            " AND o.finished >= j.first_seen ORDER BY o.finished, o.id",
            jobs,
            (Verb.REQUEUE.value, Result.DONE.value, Result.UNDONE.value, at - DAY, at + DAY),
        )
        times: defaultdict[JobId, list[float]] = defaultdict(list)
        for job, finished in self._database.unreadable_rows.parse_each("operations", "id", _move, rows):
            times[job].append(finished)
        return {job: tuple(job_times) for job, job_times in times.items()}


def _run(row: DatabaseRow) -> tuple[JobId, str, float]:
    number(row, "run_started")
    return text(row, "job"), text(row, "gpu_type"), number(row, "gpu_seconds")


def _move(row: DatabaseRow) -> tuple[JobId, float]:
    return text(row, "subject"), number(row, "finished")
