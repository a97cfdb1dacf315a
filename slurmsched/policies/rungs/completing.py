"""The second rung: what jobs that are already ending hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmsched.model import Code, Job, JobState, Reason
from slurmsched.policies.draft import Draft, Unanswered
from slurmsched.policies.placing import Level

__all__ = ["AfterCompletingJobs"]


@dataclass(slots=True)
class AfterCompletingJobs:
    """Keep a place that is free once completing jobs are gone, so that the newcomer displaces nobody meanwhile."""

    draft: Draft
    _ending: tuple[Job, ...] = ()
    _full: Unanswered = field(default_factory=Unanswered)

    def __post_init__(self) -> None:
        ending = self.draft.situation.snapshot.in_state(JobState.COMPLETING)
        self._ending = tuple(job for job in ending if job.shares)

    def settles(self, job: Job) -> bool:
        draft, wish = self.draft, self.draft.wishes.of(job)
        if not self._ending or self._full.known(wish, draft.given_back):
            return False
        soon = draft.tight.copy()
        for other in self._ending:
            soon.refund(draft.pools.claim(other.shares, alone=other.request.exclusive))
        placement = draft.find(wish, Level.LEAST, soon)
        if placement is None:
            self._full.remember(wish)
            return False
        draft.reserve(placement)
        nodes = sorted(draft.pools.node(pool).name for pool in placement.pools)
        leaving = [other.id for other in self._ending if not set(nodes).isdisjoint(other.nodes)]
        draft.note(job, Reason(Code.FREED_SOON, {"jobs": ", ".join(leaving), "nodes": ", ".join(nodes)}))
        return True
