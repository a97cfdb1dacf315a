"""Jobs on equal nodes of one GPU type, round by round (Tesserae, section 5).

Who arrives or ends within a round is seen at its end, but a job ends when it ends, and its partner has the GPUs to
itself from then on. A job that starts, or moves, loses `overhead` seconds of its round; one that goes on loses nothing,
also beside another partner. All of it is simulated; the same inputs give the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Protocol

import numpy as np

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.tesserae.serving import DONE, partners, worked
from slurmsched.experiments.tesserae.workload import Workload
from slurmsched.policies.pools import Ints, Mask
from slurmsched.policies.tesserae import Layout
from slurmsched.policies.tesserae.deciding import Decided
from slurmsched.policies.tesserae.layout import Floats
from slurmsched.simulation import Ran, Run

__all__ = ["Deciding", "Standing", "replay"]

_IN_VAIN: Final = 100
"""Rounds in a row without any work done, though nobody will arrive any more."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a policy sees. By job: seconds of work left, GPU-seconds held. `active`: who is there, in order of arrival;
    `before`: the last round's layout."""

    time: float
    period: float
    workload: Workload
    sizes: Ints
    active: Ints
    remaining: Floats
    attained: Floats
    before: Layout


class Deciding(Protocol):
    """A policy of a replay. It may remember: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, standing: Standing) -> Decided: ...


@dataclass(slots=True)
class _Progress:
    """Where every job is."""

    remaining: Floats
    attained: Floats
    start: Floats
    end: Floats
    restarts: Ints
    moves: Ints
    running: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.running = np.zeros(len(self.remaining), dtype=np.bool_)


def replay(workload: Workload, sizes: Ints, policy: Deciding, *, period: float = 360.0, overhead: float = 60.0) -> Run:
    """Run all jobs to their end. `sizes` are the GPUs of each node; times in seconds. Raises ExperimentError for a
    policy that lets jobs wait for ever."""
    jobs, began = len(workload), perf_counter()
    never = np.full(jobs, np.nan)
    count = np.zeros(jobs, dtype=np.int64)
    at = _Progress(workload.work.copy(), np.zeros(jobs), never.copy(), never.copy(), count.copy(), count.copy())
    before, now, rounds, in_vain, decisions = Layout.of(()), 0.0, 0, 0, list[float]()
    while np.isnan(at.end).any():
        active = np.flatnonzero((workload.arrival <= now) & np.isnan(at.end))
        if not len(active):
            now += period * np.ceil((workload.arrival[np.isnan(at.end)].min() - now) / period)
            continue
        standing = Standing(now, period, workload, sizes, active, at.remaining, at.attained, before)
        started = perf_counter()
        decided = policy.decide(standing)
        decisions.append(perf_counter() - started)
        done = _run(at, standing, decided, overhead)
        in_vain = 0 if done > 0 else in_vain + 1
        if in_vain > _IN_VAIN:
            raise ExperimentError(f"{policy.name} never runs job {active[0]} and {len(active) - 1} others")
        before, now, rounds = decided.layout, now + period, rounds + 1
    total, wall = float(sizes.sum()), perf_counter() - began
    return Run(
        policy.name,
        "",
        "",
        0,
        jobs=_ran(workload, at),
        samples=(),
        total_gpus=total,
        total_cpus=0.0,
        total_memory=0.0,
        rounds=rounds,
        decisions=tuple(decisions),
        wall_s=wall,
        cpu_s=wall,
    )


def _run(at: _Progress, standing: Standing, decided: Decided, overhead: float) -> float:
    """One round. The seconds of work done in it."""
    workload, now, period = standing.workload, standing.time, standing.period
    job, partner = partners(decided.layout)
    moved = np.zeros(len(workload), dtype=np.bool_)
    moved[list(decided.moved)] = True
    starts = ~at.running[job]
    delay = np.where(starts | moved[job], min(overhead, period), 0.0)
    at.restarts[job] += (starts | moved[job]) & ~np.isnan(at.start[job])
    at.moves[job] += moved[job]
    at.start[job] = np.where(np.isnan(at.start[job]), now, at.start[job])
    left = at.remaining[job]
    done, end = worked(workload.speeds(job, partner), partner, left, delay, period)
    at.remaining[job] = np.maximum(left - done, 0.0)
    at.attained[job] += workload.gpus[job] * np.minimum(end, period)
    at.running[:] = False
    over = left - done < DONE
    at.running[job[~over]] = True
    at.end[job[over]] = now + end[over]
    return float(done.sum())


def _ran(workload: Workload, at: _Progress) -> tuple[Ran, ...]:
    return tuple(
        Ran(
            job=str(number),
            arrival=float(workload.arrival[number]),
            work=float(workload.work[number]),
            gpus=float(workload.gpus[number]),
            model=workload.models[int(workload.kind[number])],
            start=float(at.start[number]),
            end=float(at.end[number]),
            state="COMPLETED",
            service=float(at.attained[number]),
            useful=float(workload.work[number] * workload.gpus[number]),
            restarts=int(at.restarts[number]),
            migrations=int(at.moves[number]),
        )
        for number in range(len(workload))
    )
