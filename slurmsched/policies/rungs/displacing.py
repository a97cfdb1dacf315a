"""The last rung: running jobs that rank clearly behind give way.

As in kueue's minimal preemptions: jobs leave from the end of the order until the newcomer fits, then every victim that
was not needed is given back.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from slurmsched.model import Code, Job, JobId, Reason
from slurmsched.policies.draft import Draft, Unanswered
from slurmsched.policies.placing import Level, Placement, Wish
from slurmsched.policies.rungs.leaving import Leaving

__all__ = ["InPlaceOfOthers"]


@dataclass(slots=True)
class InPlaceOfOthers:
    """Displace the fewest running jobs that the newcomer outranks, the last in order first."""

    draft: Draft
    _full: Unanswered = field(default_factory=Unanswered)
    _too_many: Unanswered = field(default_factory=Unanswered)
    _leaving: Leaving | None = None
    _as_of: int = -1

    def settles(self, job: Job) -> bool:
        draft, wish = self.draft, self.draft.wishes.of(job)
        leaving = self._current()
        behind = self._outranked(job, leaving)
        if not behind or self._full.known((wish, behind), draft.given_back):
            return False
        spent = self._too_many.known((wish, behind), draft.given_back)
        if not spent and self._find(wish, leaving, behind) is None:
            self._full.remember((wish, behind))
            return False
        found = None
        if draft.moves and not spent:
            found = self._fewest(job, wish, leaving) or self._fewest(job, wish, self._larger(job, leaving))
        if found is None:
            self._too_many.remember((wish, behind))
            draft.note(job, Reason(Code.MOVES_SPENT, {"limit": draft.situation.moves}))
            return False
        victims, placement = found
        for victim in victims:
            draft.displace(victim, job)
        draft.seat(job, placement)
        return True

    def _current(self) -> Leaving:
        """All that may leave; worked out anew when one has left."""
        if self._leaving is None or self._as_of != self.draft.given_back:
            self._as_of = self.draft.given_back
            running = (*self.draft.leases, *self.draft.restarted)
            self._leaving = Leaving.of(self.draft, filter(self.draft.may_leave, running))
        return self._leaving

    def _larger(self, job: Job, leaving: Leaving) -> Leaving:
        """Those so large that the moves that are left might suffice."""
        least = -(-job.gpus // self.draft.moves)
        return Leaving.of(self.draft, (other for other in leaving.jobs if self.draft.jobs[other].gpus >= least))

    def _outranked(self, job: Job, leaving: Leaving) -> int:
        """How many of them, from the first to leave on, the newcomer outranks."""
        return bisect_left(leaving.jobs, True, key=lambda other: not self.draft.outranks(job, self.draft.jobs[other]))

    def _find(self, wish: Wish, leaving: Leaving, count: int) -> Placement | None:
        return self.draft.find(wish, Level.LEAST, leaving.gone(count, self.draft.tight))

    def _fewest(self, job: Job, wish: Wish, leaving: Leaving) -> tuple[list[JobId], Placement] | None:
        """Victims and the place they leave; None where nothing fits or more would have to move than may."""
        behind = self._outranked(job, leaving)
        count = bisect_left(range(1, behind + 1), True, key=lambda k: self._find(wish, leaving, k) is not None) + 1
        placement = self._find(wish, leaving, count) if count <= behind else None
        if placement is None:
            return None
        victims = self._needed(placement, leaving, count)
        return (victims, placement) if len(victims) <= self.draft.moves else None

    def _needed(self, placement: Placement, leaving: Leaving, count: int) -> list[JobId]:
        """Of the first `count`, those without which the place would not be free; the better their rank, the sooner
        they are spared."""
        draft = self.draft
        room, claim = leaving.gone(count, draft.tight), placement.claim(draft.pools)
        node_of, needed = draft.pools.node_of, list[JobId]()
        nodes = {int(node_of[pool]) for pool in placement.pools}
        for victim in reversed(leaving.jobs[:count]):
            lease = draft.held(victim)
            if nodes.isdisjoint(int(node_of[pool]) for pool in lease.pools):
                continue
            room.claim(lease)
            if not room.holds(claim):
                room.refund(lease)
                needed.append(victim)
        return needed
