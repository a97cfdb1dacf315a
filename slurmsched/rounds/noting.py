"""Our note on each managed job, where site tools show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from slurmsched.model import Decision, Job, JobId, Operation, Reason, Verb

__all__ = ["MARK", "noting"]

MARK: Final = "synsched: "
"""How a note of ours begins; AdminComment that begins otherwise belongs to others and is left alone."""

_LONGEST: Final = 240


def noting(jobs: Iterable[Job], decision: Decision, waiting: Mapping[JobId, Reason]) -> Iterator[Operation]:
    """A note for each job whose reason has changed. `waiting` says more about some than the decision does."""
    for job in jobs:
        reason = waiting.get(job.id) or _reason(job.id, decision)
        if reason is None or not (not job.admin_comment or job.admin_comment.startswith(MARK)):
            continue
        text = (MARK + reason.sentence)[:_LONGEST]
        if text != job.admin_comment:
            yield Operation(Verb.NOTE, job.id, reason, job.admin_comment, text)


def _reason(job: JobId, decision: Decision) -> Reason | None:
    target = decision.targets.get(job)
    if target is not None:
        return target.reasons[0] if target.reasons else None
    return decision.waiting.get(job)
