"""Whose hold it is. A hold that is not ours is never released."""

from __future__ import annotations

from slurmsched.model import Hold, Job, Memory

__all__ = ["held_by_owner", "held_by_us"]


def held_by_us(job: Job, memory: Memory) -> bool:
    """Whether a pending job is held, and by us: by the daemon, or by the hook for it.

    The hook holds at submission only: on a job that has run since, its mark says nothing about today's hold.
    """
    if job.hold is Hold.NONE or held_by_owner(job):
        return False
    set_by_hook = job.hold is Hold.USER and job.hints.held_by_hook and job.restarts == 0
    return set_by_hook or job.id in memory.held


def held_by_owner(job: Job) -> bool:
    """Whether the hold is evidently its owner's, whatever was ours before: then the hook takes its mark away.

    Without a hint it is not evident: an operator may have replaced the comment. Nor is it on a job that has run: what
    the daemon requeued may be shown as under its owner's hold.
    """
    hints = job.hints
    return job.hold is Hold.USER and job.restarts == 0 and hints.given and not hints.held_by_hook
