"""Replays jobs on equal nodes of one GPU type, round by round (Tesserae, section 5).

Policies see arrivals and ends at the end of a round, but a job may end within a round, and its partner then has the
GPUs to itself. A job that starts or moves loses `overhead` seconds; a job that continues loses nothing, even with
another partner. Equal inputs give equal results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Protocol

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.tesserae.round import TesseraePlan
from slurmsched.experiments.tesserae.workload import Workload
from slurmsched.model.reasons import pluralise
from slurmsched.policies.tesserae.migration import NO_JOB, PlacementPlan
from slurmsched.simulation import JobResult, SimulationResult

WORK_EPSILON: Final = 1e-6
"""Seconds of work that count as 0."""


def running_partners(placement: PlacementPlan) -> tuple[Ints, Ints]:
    """Returns the running jobs, and the index of each one's partner among them or NO_JOB."""
    pairs = np.unique(placement.jobs, axis=0).reshape(-1, 2)
    job = np.unique(pairs[pairs != NO_JOB])
    partner: Ints = np.full(len(job), NO_JOB)
    shared = pairs[pairs[:, 1] != NO_JOB]
    first, second = np.searchsorted(job, shared[:, 0]), np.searchsorted(job, shared[:, 1])
    partner[first], partner[second] = second, first
    return job, partner


def work_done(speed: Floats, partner: Ints, remaining: Floats, delay: Floats, period: float) -> tuple[Floats, Floats]:
    """Returns the seconds of work of each job, and when in the round it ends, infinite if it does not.

    `speed` is the relative speed beside the partner.
    """
    has_partner = partner != NO_JOB
    with np.errstate(divide="ignore"):
        end = delay + np.where(speed > 0, remaining / speed, np.inf)
    # Only the first of a pair to end does so at the packed rate; the other has the GPUs to itself from then on.
    alone_from = np.where(has_partner, np.minimum(end[partner], period), period)
    shared = np.clip(alone_from - delay, 0.0, None) * speed
    end = np.where(end > alone_from, np.maximum(alone_from, delay) + remaining - shared, end)
    most = shared + np.clip(period - np.maximum(alone_from, delay), 0.0, None)
    return np.minimum(remaining, most), np.where(remaining <= most + WORK_EPSILON, np.minimum(end, period), np.inf)


_MAX_IDLE_ROUNDS: Final = 100
"""Consecutive rounds without progress after which the replay fails."""


@dataclass(frozen=True, slots=True)
class ReplayState:
    """The input of a policy. `remaining` is in seconds of work and `attained_service` in GPU-seconds, by job.

    `active` are the jobs in the cluster in order of arrival, `previous` is the last round's placement.
    """

    time: float
    period: float
    workload: Workload
    node_gpus: Ints
    active: Ints
    remaining: Floats
    attained_service: Floats
    previous: PlacementPlan


class ReplayPolicy(Protocol):
    """A policy of a replay. It may keep state: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, state: ReplayState) -> TesseraePlan: ...


@dataclass(slots=True)
class _JobStates:
    """The state of every job."""

    remaining: Floats
    attained_service: Floats
    start: Floats
    end: Floats
    restarts: Ints
    migrations: Ints
    running: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.running = np.zeros(len(self.remaining), dtype=np.bool_)


def replay_workload(
    workload: Workload, node_gpus: Ints, policy: ReplayPolicy, *, period: float = 360.0, overhead: float = 60.0
) -> SimulationResult:
    """Runs all jobs to their end. `node_gpus` are the GPUs of each node; times are in seconds.

    Raises ExperimentError for a policy that never runs some jobs.
    """
    jobs, began = len(workload), perf_counter()
    never = np.full(jobs, np.nan)
    count = np.zeros(jobs, dtype=np.int64)
    job_states = _JobStates(
        workload.seconds.copy(), np.zeros(jobs), never.copy(), never.copy(), count.copy(), count.copy()
    )
    previous, now, rounds, idle_rounds, decision_seconds = PlacementPlan.from_rows(()), 0.0, 0, 0, list[float]()
    while np.isnan(job_states.end).any():
        active = np.flatnonzero((workload.arrival <= now) & np.isnan(job_states.end))
        if not len(active):
            now += period * np.ceil((workload.arrival[np.isnan(job_states.end)].min() - now) / period)
            continue
        state = ReplayState(
            now, period, workload, node_gpus, active, job_states.remaining, job_states.attained_service, previous
        )
        started = perf_counter()
        plan = policy.decide(state)
        decision_seconds.append(perf_counter() - started)
        work_seconds = _run_round(job_states, state, plan, overhead)
        idle_rounds = 0 if work_seconds > 0 else idle_rounds + 1
        if idle_rounds > _MAX_IDLE_ROUNDS:
            others = pluralise(len(active) - 1, "other job")
            raise ExperimentError(f"{policy.name} never runs job {active[0]} and {others}")
        previous, now, rounds = plan.placement, now + period, rounds + 1
    total, wall = float(node_gpus.sum()), perf_counter() - began
    return SimulationResult(
        policy.name,
        "",
        "",
        0,
        jobs=_job_results(workload, job_states),
        samples=(),
        total_gpus=total,
        total_cpus=0.0,
        total_memory=0.0,
        rounds=rounds,
        decisions=tuple(decision_seconds),
        wall_s=wall,
        cpu_s=wall,
    )


def _run_round(job_states: _JobStates, state: ReplayState, plan: TesseraePlan, overhead: float) -> float:
    """Runs one round and returns the seconds of work done."""
    workload, now, period = state.workload, state.time, state.period
    job, partner = running_partners(plan.placement)
    migrated = np.zeros(len(workload), dtype=np.bool_)
    migrated[list(plan.migrated)] = True
    starts = ~job_states.running[job]
    delay = np.where(starts | migrated[job], min(overhead, period), 0.0)
    job_states.restarts[job] += (starts | migrated[job]) & ~np.isnan(job_states.start[job])
    job_states.migrations[job] += migrated[job]
    job_states.start[job] = np.where(np.isnan(job_states.start[job]), now, job_states.start[job])
    remaining = job_states.remaining[job]
    done, end = work_done(workload.speeds(job, partner), partner, remaining, delay, period)
    job_states.remaining[job] = np.maximum(remaining - done, 0.0)
    job_states.attained_service[job] += workload.gpus[job] * np.minimum(end, period)
    job_states.running[:] = False
    finished = remaining - done < WORK_EPSILON
    job_states.running[job[~finished]] = True
    job_states.end[job[finished]] = now + end[finished]
    return float(done.sum())


def _job_results(workload: Workload, job_states: _JobStates) -> tuple[JobResult, ...]:
    return tuple(
        JobResult(
            job=str(number),
            arrival=float(workload.arrival[number]),
            work=float(workload.seconds[number]),
            gpus=float(workload.gpus[number]),
            model=workload.models[int(workload.job_type[number])],
            start=float(job_states.start[number]),
            end=float(job_states.end[number]),
            state="COMPLETED",
            service=float(job_states.attained_service[number]),
            useful=float(workload.seconds[number] * workload.gpus[number]),
            restarts=int(job_states.restarts[number]),
            migrations=int(job_states.migrations[number]),
        )
        for number in range(len(workload))
    )
