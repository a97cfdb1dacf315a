"""What earlier rounds leave for the next one, and how fast jobs were by their own reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.model.job import JobId, Request


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """One job's steps per second, `rate`, with one allocation of `gpus` GPUs of one type on so many nodes.

    `cpus` and `memory` (MiB) are per GPU; the fair ones are the GPU-proportional share of the same nodes. `at` is when
    it was last measured (unix seconds).
    """

    gpu_type: str
    gpus: int
    nodes: int
    cpus: float
    memory: float
    fair_cpus: float
    fair_memory: float
    rate: float
    at: float


@dataclass(frozen=True, slots=True)
class NotifiedJob:
    """A running job that was told at `at` (unix seconds) to write its checkpoint, and is requeued in a later round.

    `newcomers` are the jobs that it is to give way to. `saved` where it reports that the checkpoint is written.
    """

    at: float
    newcomers: tuple[JobId, ...]
    saved: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerState:
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
    `notified`: running jobs that were told to write their checkpoint and are not requeued yet.
    `set_aside`: since when nothing is decided about a job (unix seconds), of those that are set aside.
    `held_aside`: the ones among them under a hold of ours, or of an array that is set aside, and since when.
    """

    original_requests: Mapping[JobId, Request] = field(default_factory=dict)
    held: frozenset[JobId] = frozenset()
    service: Mapping[JobId, float] = field(default_factory=dict)
    moves: Mapping[JobId, tuple[float, ...]] = field(default_factory=dict)
    nices: Mapping[JobId, int] = field(default_factory=dict)
    stalled: Mapping[JobId, str] = field(default_factory=dict)
    policy_state: Mapping[str, object] = field(default_factory=dict)
    submitted: Mapping[JobId, float] = field(default_factory=dict)
    usual: tuple[tuple[Request, int], ...] = ()
    measured: Mapping[JobId, tuple[MeasuredRate, ...]] = field(default_factory=dict)
    steps: Mapping[JobId, int] = field(default_factory=dict)
    notified: Mapping[JobId, NotifiedJob] = field(default_factory=dict)
    set_aside: Mapping[JobId, float] = field(default_factory=dict)
    held_aside: Mapping[JobId, float] = field(default_factory=dict)
