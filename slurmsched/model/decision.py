"""The decision of a policy: which jobs run on which nodes with which resources, and why the others wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from slurmsched.model.job import JobId, NodeAllocation
from slurmsched.model.node import Resources
from slurmsched.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class RankedJob:
    """A job in the policy's order; `key` is its sort key as text for people (`12.5 GPU-hours attained`)."""

    job: JobId
    key: str


@dataclass(frozen=True, slots=True)
class Target:
    """A job that should run, and its allocations. A running job with unchanged allocations is not touched."""

    job: JobId
    allocations: tuple[NodeAllocation, ...]
    reasons: tuple[Reason, ...] = ()
    speed: float = 1.0
    """Speed relative to the GPU-proportional share on GPUs that the job does not share."""
    beside: tuple[JobId, ...] = ()
    """The jobs that should share its GPUs."""
    steps: int | None = None
    """For a copy of a forked job (HadarE), the steps that it does until the next round; None for other jobs."""
    after: tuple[JobId, ...] = ()
    """Jobs that start in this round and must run before it is released: Slurm chooses the devices in this order."""
    once_left: tuple[JobId, ...] = ()
    """Jobs that must have left before it is released, if they leave at all: Slurm might choose their devices."""

    @property
    def resources(self) -> Resources:
        return sum((allocation.resources for allocation in self.allocations), Resources())

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(allocation.node for allocation in self.allocations)


@dataclass(frozen=True, slots=True)
class Promise:
    """The start that is promised to the first job of the order that does not fit.

    `start`, in unix seconds, is when it starts at the latest, on these `allocations`, once the jobs in `waits_for` have
    left them; None where nobody knows when these end. `certain`: time limits say so, not estimates.
    """

    job: JobId
    start: float | None
    allocations: tuple[NodeAllocation, ...]
    waits_for: tuple[JobId, ...] = ()
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one round. `order` ranks every managed job; each is either in `targets` or in `waiting`.

    `victims` maps each running job that is evicted to the job that it gives way to. `state` is what the policy keeps
    for the next round, JSON-safe. `saved_moves` are moves that earlier rounds left unused: this one may make them too.
    `full_round_at` is when a full round is due that the clock does not bring, in unix seconds.
    """

    policy: str
    order: tuple[RankedJob, ...]
    targets: Mapping[JobId, Target]
    waiting: Mapping[JobId, Reason]
    victims: Mapping[JobId, JobId] = field(default_factory=dict)
    state: Mapping[str, object] = field(default_factory=dict)
    promise: Promise | None = None
    saved_moves: int = 0
    full_round_at: float = inf


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job runs where it does, or waits, in plain words, as `synsched explain` prints it. JSON-safe.

    `headline` is one sentence. `ordered_behind` names the nearest jobs ahead of it that have GPUs, nearest first.
    `what_would_change` lists what its owner could do or wait for. `facts` are figures by name.
    """

    job: JobId
    headline: str
    ordered_behind: tuple[str, ...] = ()
    what_would_change: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """The reason's code for programs (`ReasonCode`); empty where the headline has none."""

    @classmethod
    def of_reason(
        cls,
        job: JobId,
        reason: Reason,
        ordered_behind: tuple[str, ...] = (),
        what_would_change: tuple[str, ...] = (),
        facts: Mapping[str, str] | None = None,
    ) -> Explanation:
        """The explanation that says this reason, and whatever else is given."""
        headline = f"job {job} {reason.sentence}"
        return cls(job, headline, ordered_behind, what_would_change, facts or {}, reason.code.value)
