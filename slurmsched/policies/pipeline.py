"""The one loop that runs a policy's stages: order, size, place, admit, finish (Synergy, sections 3.2 and 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurmsched.model import Decision, JobId
from slurmsched.policies.admit.allocate import AllocateFree, WaitForCompleting
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.admit.shrink import ShrinkRunning
from slurmsched.policies.finish.resize import resize_running
from slurmsched.policies.finish.spare import distribute_spare
from slurmsched.policies.place.placement import NodeScore
from slurmsched.policies.reasons import explain
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Sizing
from slurmsched.policies.stages import AdmissionStep, Order, Situation

ADMISSION_STEPS: Final[tuple[Callable[[Session], AdmissionStep], ...]] = (
    AllocateFree,
    WaitForCompleting,
    ShrinkRunning,
    Preempt,
)
"""Ways to find a newcomer a place, least disruptive first."""

FINISH_STEPS: Final[tuple[Callable[[Session], None], ...]] = (distribute_spare, resize_running)
"""What is spare goes to those it makes faster."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One round as in Synergy (sections 3.2 and 4.2), with leases that last.

    Jobs are gone through in order. One that runs keeps what it has. A newcomer climbs the ladder until a rung settles
    it; it is passed over only where its GPUs cannot be had, and then those behind it are still tried. A job that was
    displaced is a newcomer when its turn comes, so that what one round decides the next one does not undo. In the end
    the steps of `finishing` go over what was placed: who gets what is spare, and which nodes change names.
    """

    name: str
    order: Order
    sizing: Sizing
    node_score: NodeScore
    finish_steps: tuple[Callable[[Session], None], ...] = FINISH_STEPS
    """Done once everybody had a turn."""
    mixed_types: Mapping[JobId, frozenset[str]] = field(default_factory=dict)
    """Jobs that may lie on several GPU types at once, and on which."""
    anti_affinity: Mapping[JobId, JobId] = field(default_factory=dict)
    """Jobs of which no two may be on one node where the name is the same: copies, and of which job."""

    def decide(self, situation: Situation) -> Decision:
        session = Session(
            situation,
            self.order,
            self.sizing,
            self.node_score,
            mixed_types=self.mixed_types,
            anti_affinity=self.anti_affinity,
        )
        admission = [rung(session) for rung in ADMISSION_STEPS]
        for ranked in session.ranking:
            job = session.jobs[ranked.job]
            if session.needs_placement(job):
                any(rung.try_admit(job) for rung in admission)
        for step in self.finish_steps:
            step(session)
        session.cancel_noop_evictions()
        targets, waiting = explain(session, self.order.name)
        return Decision(self.name, session.ranking, targets, waiting, session.victims, dict(situation.state))
