"""What the owner asked for, put back beside what stands in Slurm."""

from __future__ import annotations

from dataclasses import replace

from slurmsched.model import Memory, Snapshot

__all__ = ["recalled"]


def recalled(snapshot: Snapshot, memory: Memory) -> Snapshot:
    """The snapshot with each reshaped job's original as its `request`; `standing` stays what Slurm holds."""
    if not memory.originals:
        return snapshot
    jobs = tuple(
        replace(job, request=memory.originals[job.id]) if job.id in memory.originals else job for job in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs)
