"""Running jobs on a slower GPU type than they were picked for go there where it is free and pays.

Gavel's rounds move jobs at no cost (section 5); here a move is a checkpoint and a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf

from slurmsched.model import Code, Job, JobId, Reason
from slurmsched.model.wording import span
from slurmsched.policies.draft import Draft
from slurmsched.policies.enlarging import CLEARLY
from slurmsched.policies.placing import Level

__all__ = ["Moving"]


@dataclass(frozen=True, slots=True)
class Moving:
    """`kinds`: the GPU type that each job was picked for; `speed`: of a job on a type, in a unit of its own."""

    kinds: Mapping[JobId, str]
    speed: Mapping[tuple[JobId, str], float]

    def __call__(self, draft: Draft) -> None:
        """Move jobs in order, as many as may still be moved this round."""
        for ranked in draft.order:
            job = draft.jobs[ranked.job]
            if draft.moves <= 0:
                return
            saving = self._saving(draft, job) if job.id in draft.leases and draft.may_leave(job.id) else 0.0
            if saving <= CLEARLY * draft.situation.restart_cost:
                continue
            place = draft.find(draft.wishes.of(job), Level.LEAST, draft.tight)
            if place is not None:
                said = {"saving": span(saving), "cost": span(draft.situation.restart_cost)}
                draft.enlarge(job, place, Reason(Code.PAYS_FOR_RESTART, said))

    def _saving(self, draft: Draft, job: Job) -> float:
        """Seconds until its end that it would save. Where nothing is known of that, a job is half done."""
        knowledge, kind = draft.situation.knowledge, self.kinds.get(job.id)
        now = min((self.speed.get((job.id, share.gpu_type), 0.0) for share in job.shares), default=0.0)
        then = self.speed[job.id, kind] if kind else 0.0
        remaining = knowledge.remaining(job)
        if isinf(remaining):
            remaining = knowledge.executed(job)
        return remaining * (1 - now / then) if then > now else 0.0
