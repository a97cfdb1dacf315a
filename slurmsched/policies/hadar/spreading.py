"""Copies of one job go to every idle node (HadarE, theorem 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmsched.model import Job, JobId
from slurmsched.policies.draft import Draft
from slurmsched.policies.rungs import InFreeRoom

__all__ = ["Spreading"]


@dataclass(frozen=True, slots=True)
class Spreading:
    """Prices know nothing of copies that may not be on one node: one that was given a GPU type of which all are beside
    other copies takes any that is idle. `copies` are as their owners submitted them."""

    copies: Mapping[JobId, Job]

    def __call__(self, draft: Draft) -> None:
        rung = InFreeRoom(draft)
        for ranked in draft.order:
            job = self.copies.get(ranked.job)
            if job is not None and draft.wants_a_place(job):
                draft.jobs[job.id] = job
                draft.wishes.forget(job)
                rung.settles(job)
