"""What the owner asked for, and when, put back beside what stands in Slurm."""

from __future__ import annotations

from dataclasses import replace

from slurmsched.model import Job, Memory, Snapshot

__all__ = ["recalled"]


def recalled(snapshot: Snapshot, memory: Memory) -> Snapshot:
    """The snapshot with each reshaped job's original as its `request`, and each requeued one's first submission;
    `standing` stays what Slurm holds."""
    if not memory.originals and not memory.submitted:
        return snapshot
    return replace(snapshot, jobs=tuple(_recalled(job, memory) for job in snapshot.jobs))


def _recalled(job: Job, memory: Memory) -> Job:
    original, submitted = memory.originals.get(job.id), memory.submitted.get(job.id)
    if original is None and submitted is None:
        return job
    return replace(
        job,
        request=job.request if original is None else original,
        submit_time=job.submit_time if submitted is None else submitted,
    )
