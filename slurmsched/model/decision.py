"""What a policy decided: who runs where with what, and why the others wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.model.job import JobId, NodeAllocation
from slurmsched.model.node import Resources
from slurmsched.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class RankedJob:
    """A job's place in the order: `key` is what it was sorted by, said for people (`12.5 GPU-hours attained`)."""

    job: JobId
    key: str


@dataclass(frozen=True, slots=True)
class Target:
    """A job that shall run, and on what. A running job whose shares are unchanged keeps its lease."""

    job: JobId
    allocations: tuple[NodeAllocation, ...]
    reasons: tuple[Reason, ...] = ()
    speed: float = 1.0
    """Relative to the GPU-proportional share, and to having its GPUs alone."""
    beside: tuple[JobId, ...] = ()
    """Who is meant to use the same GPUs."""
    steps: int | None = None
    """Steps that it does, until the next round, of the forked job that it is a copy of; None for other jobs."""

    @property
    def resources(self) -> Resources:
        return sum((share.resources for share in self.allocations), Resources())

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(share.node for share in self.allocations)


@dataclass(frozen=True, slots=True)
class Decision:
    """One round's outcome. `order` ranks every managed job; each of them is in `targets` or in `waiting`, never both.

    `victims` says for each running job that must leave which job it gives way to. `state` is the policy's own memory
    for the next round, JSON-safe.
    """

    policy: str
    order: tuple[RankedJob, ...]
    targets: Mapping[JobId, Target]
    waiting: Mapping[JobId, Reason]
    victims: Mapping[JobId, JobId] = field(default_factory=dict)
    state: Mapping[str, object] = field(default_factory=dict)
