"""Attained service: GPU-seconds per run of a job, and how often it was displaced."""

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
    """One row per run, so a restart loses nothing and counts nothing twice. All raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_runs(self, snapshot: Snapshot) -> None:
        """Bring the runs that the snapshot shows up to its time; a run that is gone keeps its last figure.

        A running job without a start time (Slurm could not say) is left out until it has one.
        """
        runs = [
            (job.id, job.start_time, gpus * max(job.run_time, 0.0))
            for job in snapshot.jobs_in_state(*_HOLDING_RESOURCES)
            if job.start_time is not None and (gpus := snapshot.gpus_of(job))
        ]
        self._database.write_many(
            "INSERT INTO service (job, run_started, gpu_seconds) VALUES (?, ?, ?) ON CONFLICT (job, run_started)"
            " DO UPDATE SET gpu_seconds = MAX(gpu_seconds, excluded.gpu_seconds)",
            runs,
        )

    def gpu_seconds_of(self, job: JobId) -> float:
        """GPU-seconds over all runs of one job."""
        return self.gpu_seconds((job,)).get(job, 0.0)

    def gpu_seconds(self, jobs: Iterable[JobId]) -> Mapping[JobId, float]:
        """GPU-seconds over all runs, of those of the jobs that have any."""
        runs = self._database.rows_of_jobs(
            "SELECT job, run_started, gpu_seconds FROM service WHERE job IN ({jobs}) ORDER BY job, run_started", jobs
        )
        sums: defaultdict[JobId, float] = defaultdict(float)
        for job, seconds in self._database.unreadable_rows.parse_each("service", "job", _run, runs):
            sums[job] += seconds
        return dict(sums)

    def moves(self, at: float, jobs: Iterable[JobId]) -> Mapping[JobId, tuple[float, ...]]:
        """When each of the jobs was displaced in the 24 hours before `at`, in order. What befell an older job with its
        number does not count, nor what a clock that was more than a day ahead wrote."""
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
        return {job: tuple(when) for job, when in times.items()}


def _run(row: DatabaseRow) -> tuple[JobId, float]:
    number(row, "run_started")
    return text(row, "job"), number(row, "gpu_seconds")


def _move(row: DatabaseRow) -> tuple[JobId, float]:
    return text(row, "subject"), number(row, "finished")
