"""The first rung: what is free (Synergy-Tune, section 4.2, steps 1 and 2 among jobs of one round)."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmsched.model import Job
from slurmsched.policies.draft import Draft, Unanswered
from slurmsched.policies.placing import Level

__all__ = ["InFreeRoom"]


@dataclass(slots=True)
class InFreeRoom:
    """On its best-case demand; else on the least it accepts; else where jobs placed this round make room for that."""

    draft: Draft
    _full: Unanswered = field(default_factory=Unanswered)

    def settles(self, job: Job) -> bool:
        draft, wish = self.draft, self.draft.wishes.of(job)
        if self._full.known(wish, draft.given_back):
            return False
        last = draft.find(wish, Level.LEAST, draft.tight)
        if last is None:
            self._full.remember(wish)
            return False
        draft.seat(job, draft.find(wish, Level.BEST, draft.wide) or draft.find(wish, Level.LEAST, draft.wide) or last)
        return True
