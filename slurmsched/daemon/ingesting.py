"""What jobs report, taken in once a round."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from slurmsched.daemon.believing import doubt, gain, word
from slurmsched.daemon.spool import UserId, about, read_reports, uid_of
from slurmsched.jobside.report import Report
from slurmsched.model import Job, JobId, JobState, Snapshot
from slurmsched.store.measurements import Complaint, Gain, Measurements, Word

__all__ = ["ingest"]


def ingest(
    spool: Path, snapshot: Snapshot, managed: Collection[JobId], measurements: Measurements, uid: UserId = uid_of
) -> int:
    """Read what the managed jobs that run report, and keep what is believed; how many reports there were.

    No file in the spool can make it fail. Raises StoreError.
    """
    running = [job for job in snapshot.in_state(JobState.RUNNING) if job.id in managed]
    reports, complaints = read_reports(spool, running, {job.id: job.user for job in snapshot.jobs}, uid)
    last = measurements.words(job.id for job in running)
    words: list[Word] = []
    gains: list[Gain] = []
    doubted: list[Complaint] = []
    for job in running:
        report, before = reports.get(job.id), last.get(job.id)
        if report is None or not _is_new(job, report, before):
            continue
        since = before if before is not None and before.run == report.run else None
        why = doubt(job, report, since, snapshot.time)
        if why is not None:
            doubted.append(Complaint(about(job), why))
            continue
        words.append(word(job, report))
        gained = gain(job, report, since, snapshot.node)
        gains += [gained] if gained is not None else []
    measurements.record(words, gains, (*complaints, *doubted), snapshot.time)
    return len(reports)


def _is_new(job: Job, report: Report, last: Word | None) -> bool:
    """Whether it is of the run that is under way, and not the one that was read before."""
    return report.run >= job.restarts and (last is None or (report.run, report.at) != (last.run, last.at))
