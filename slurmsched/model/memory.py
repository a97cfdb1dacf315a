"""What earlier rounds leave for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.model.job import JobId, Request
from slurmsched.model.measured import Measured

__all__ = ["Memory"]


@dataclass(frozen=True, slots=True)
class Memory:
    """What the store knows that Slurm does not.

    `originals`: what a job asked for before a round reshaped it.
    `held`: pending jobs whose hold is ours (the daemon's own, or set by the hook for it).
    `service`: GPU-seconds attained over all runs of a job, up to the snapshot's time.
    `moves`: unix times at which a job was displaced.
    `nices`: the nice its owner gave a job, of those whose nice is ours now.
    `stalled`: what Slurm said of a start it did not make, of jobs not to be tried again yet.
    `policy_state`: what the policy remembered, JSON-safe.
    `usual`: what managed jobs of the last days asked for, and how many each.
    `submitted`: when a job was first submitted, of those whose time of submission a requeue has renewed.
    `measured`: how fast a job was with each allocation that it has had, by its own reports.
    `steps`: how many steps of its whole life it has done, by its own reports.
    """

    originals: Mapping[JobId, Request] = field(default_factory=dict)
    held: frozenset[JobId] = frozenset()
    service: Mapping[JobId, float] = field(default_factory=dict)
    moves: Mapping[JobId, tuple[float, ...]] = field(default_factory=dict)
    nices: Mapping[JobId, int] = field(default_factory=dict)
    stalled: Mapping[JobId, str] = field(default_factory=dict)
    policy_state: Mapping[str, object] = field(default_factory=dict)
    submitted: Mapping[JobId, float] = field(default_factory=dict)
    usual: tuple[tuple[Request, int], ...] = ()
    measured: Mapping[JobId, tuple[Measured, ...]] = field(default_factory=dict)
    steps: Mapping[JobId, int] = field(default_factory=dict)
