"""What is settled before anything is placed: who runs on, and whose last run is not over."""

from __future__ import annotations

from slurmsched.model import Code, Job, JobState, Reason

__all__ = ["ending", "has_a_lease"]


def has_a_lease(job: Job) -> bool:
    """Whether the job runs, and keeps what it has."""
    return bool(job.shares) and job.state in (JobState.RUNNING, JobState.SUSPENDED)


def ending(job: Job) -> Reason | None:
    """Why the job cannot be placed yet, where it has not left its last nodes."""
    if job.state is not JobState.COMPLETING:
        return None
    return Reason(Code.FREED_SOON, {"jobs": "its own last run", "nodes": ", ".join(job.nodes)})
