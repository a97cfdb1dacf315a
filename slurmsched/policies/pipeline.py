"""The loop that runs a policy's stages: order, size, place, admit, finish.

Source: Mohan et al., "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters" (Synergy, OSDI 2022), sections
3.2 and 4.2.
"""

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
from slurmsched.policies.session import FinishStep, Session
from slurmsched.policies.sizes import Sizing
from slurmsched.policies.stages import AdmissionStep, Order, Situation

ADMISSION_STEPS: Final[tuple[Callable[[Session], AdmissionStep], ...]] = (
    AllocateFree,
    WaitForCompleting,
    ShrinkRunning,
    Preempt,
)
"""Ways to admit a newcomer, least disruptive first."""

FINISH_STEPS: Final[tuple[FinishStep, ...]] = (distribute_spare, resize_running)
"""Spare resources go to the jobs that they make faster."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A policy made of stages: one round as in Synergy (sections 3.2 and 4.2), except that allocations last.

    Jobs are considered in order. A running job keeps what it has. For a newcomer the `ADMISSION_STEPS` are tried until
    one admits it; if none does, it waits and the jobs behind it are still tried. A job that was evicted is a newcomer
    when its turn comes, so that the next round does not undo this one. In the end the `finish_steps` run.
    """

    name: str
    order: Order
    sizing: Sizing
    node_score: NodeScore
    finish_steps: tuple[FinishStep, ...] = FINISH_STEPS
    """Run once every job had its turn."""
    mixed_types: Mapping[JobId, frozenset[str]] = field(default_factory=dict)
    """Jobs that may use several GPU types at once, and which types."""
    anti_affinity: Mapping[JobId, JobId] = field(default_factory=dict)
    """Copies, each with the forked job it is a copy of: no two copies of one job share a node."""

    def decide(self, situation: Situation) -> Decision:
        session = Session(
            situation,
            self.order,
            self.sizing,
            self.node_score,
            mixed_types=self.mixed_types,
            anti_affinity=self.anti_affinity,
        )
        admission = [step(session) for step in ADMISSION_STEPS]
        for ranked in session.ranking:
            job = session.jobs[ranked.job]
            if session.needs_placement(job):
                any(step.try_admit(job) for step in admission)
        for finish in self.finish_steps:
            finish(session)
        session.cancel_noop_evictions()
        targets, waiting = explain(session, self.order.name)
        return Decision(self.name, session.ranking, targets, waiting, session.victims, dict(situation.state))
