"""A system put together from an order, a way of allocating and a way of choosing nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurmsched.model import Decision, JobId
from slurmsched.policies.allocating import Allocating
from slurmsched.policies.draft import Draft
from slurmsched.policies.enlarging import enlarge
from slurmsched.policies.explaining import explained
from slurmsched.policies.growing import grow
from slurmsched.policies.placing import Choosing
from slurmsched.policies.protocol import Ordering, Situation
from slurmsched.policies.rungs import AfterCompletingJobs, BesideRestartedJobs, InFreeRoom, InPlaceOfOthers, Rung

__all__ = ["FINISHING", "Composed"]

LADDER: Final[tuple[Callable[[Draft], Rung], ...]] = (
    InFreeRoom,
    AfterCompletingJobs,
    BesideRestartedJobs,
    InPlaceOfOthers,
)
"""Ways to find a newcomer a place, least disruptive first."""

FINISHING: Final[tuple[Callable[[Draft], None], ...]] = (grow, enlarge)
"""What is spare goes to those it makes faster."""


@dataclass(frozen=True, slots=True)
class Composed:
    """One round as in Synergy (sections 3.2 and 4.2), with leases that last.

    Jobs are gone through in order. One that runs keeps what it has. A newcomer climbs the ladder until a rung settles
    it; it is passed over only where its GPUs cannot be had, and then those behind it are still tried. A job that was
    displaced is a newcomer when its turn comes, so that what one round decides the next one does not undo. In the end
    the steps of `finishing` go over what was placed: who gets what is spare, and which nodes change names.
    """

    name: str
    ordering: Ordering
    allocating: Allocating
    choosing: Choosing
    finishing: tuple[Callable[[Draft], None], ...] = FINISHING
    """Done once everybody had a turn."""
    mixed: Mapping[JobId, frozenset[str]] = field(default_factory=dict)
    """Jobs that may lie on several GPU types at once, and on which."""
    apart: Mapping[JobId, JobId] = field(default_factory=dict)
    """Jobs of which no two may be on one node where the name is the same: copies, and of which job."""

    def decide(self, situation: Situation) -> Decision:
        draft = Draft(situation, self.ordering, self.allocating, self.choosing, mixed=self.mixed, apart=self.apart)
        ladder = [rung(draft) for rung in LADDER]
        for ranked in draft.order:
            job = draft.jobs[ranked.job]
            if draft.wants_a_place(job):
                any(rung.settles(job) for rung in ladder)
        for step in self.finishing:
            step(draft)
        draft.spare_the_unchanged()
        targets, waiting = explained(draft, self.ordering.name)
        return Decision(self.name, draft.order, targets, waiting, draft.victims, dict(situation.state))
