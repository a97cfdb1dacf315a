"""HadarE in rounds: copies on nodes, a Job Tracker for each job, rates refined as they are measured (section V)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from slurmsched.experiments.mixed.figures import Replayed, RoundRecord
from slurmsched.experiments.mixed.replay import ReplayError
from slurmsched.experiments.mixed.work import Work
from slurmsched.experiments.mixed.workers import Workers
from slurmsched.policies.hadare import Forked, JobTracker, Throughputs, learned_unit, shared

__all__ = ["Dies", "replay_forked"]

Dies = Callable[[int, int], float]
"""When in a round, by its number, the copy on a node dies, in seconds from the round's start; infinite if it lives."""

_IN_VAIN: Final = 50
"""Rounds in a row without a step, after which there will never be one."""

_UNKNOWN: Final = 1e-12
"""Steps per second in a unit of the estimates while nothing was measured: so slow that no job ends in the round, and
all nodes take part in the first."""


@dataclass(slots=True)
class _Job:
    work: Work
    tracker: JobTracker
    known: Throughputs


def replay_forked(
    work: Iterable[Work],
    workers: Workers,
    estimated: Mapping[str, Mapping[str, float]],
    *,
    period: float = 360.0,
    exchange: float = 5.0,
    dies: Dies = lambda _number, _node: float("inf"),
) -> Replayed:
    """Run jobs of one GPU each, all there at the start, in copies on every node, to their end.

    `estimated`: by model the throughput on each kind of node, in any unit. `exchange`: seconds at the start of each
    round in which parameters are consolidated and handed out, and no step is done. Raises ReplayError.
    """
    jobs = [_Job(one, JobTracker(one.steps), Throughputs(estimated[one.model])) for one in work]
    ends: dict[str, float] = {}
    records: list[RoundRecord] = []
    now, in_vain = 0.0, 0
    while active := [job for job in jobs if not job.tracker.finished]:
        before = sum(job.tracker.remaining for job in active)
        unit = learned_unit(job.known for job in jobs) or _UNKNOWN
        alive = [dies(len(records), node) - exchange for node in range(len(workers))]
        busy, through = _round(active, workers, period - exchange, unit, alive)
        in_vain = in_vain + 1 if sum(job.tracker.remaining for job in active) == before else 0
        if in_vain > _IN_VAIN:
            raise ReplayError(f"job {active[0].work.id} never ends: a step of it takes longer than a round")
        over = all(job.tracker.finished for job in active)
        length = exchange + max(through.values(), default=0.0) if over else period
        ends |= {job.work.id: now + exchange + through[job.work.id] for job in active if job.tracker.finished}
        records.append(_record(workers, now, length, busy, len(active)))
        now += length
    return Replayed("hadare", tuple(job.work for job in jobs), ends, workers.gpus, tuple(records), ())


def _round(
    jobs: Sequence[_Job], workers: Workers, slot: float, unit: float, alive: Sequence[float]
) -> tuple[dict[int, float], dict[str, float]]:
    """Seconds that each node was busy, and when, from the first step on, each job was through."""
    asked = [
        Forked(job.work.id, job.tracker.remaining, tuple(job.known.of(kind, unit) for kind in workers.types))
        for job in jobs
    ]
    plan, busy, through = shared(asked, slot), dict[int, float](), dict[str, float]()
    for job in jobs:
        portions = plan.get(job.work.id, {})
        tracker = job.tracker.begin({node + 1: steps for node, steps in portions.items()})
        for node, steps in portions.items():
            kind = workers.types[node]
            rate, time = job.work.rates[kind], max(0.0, min(slot, alive[node]))
            done = min(steps, floor(rate * time))
            busy[node] = done / rate if done == steps else time
            tracker = tracker.report(node + 1, tracker.number, done).end(node + 1, tracker.number)
            if done:
                job.known = job.known.refined(kind, rate)
        job.tracker = tracker.close()
        through[job.work.id] = max((busy[node] for node in portions), default=0.0)
    return busy, through


def _record(workers: Workers, now: float, length: float, busy: Mapping[int, float], running: int) -> RoundRecord:
    seconds = dict.fromkeys(workers.gpus, 0.0)
    granted = dict.fromkeys(workers.gpus, 0)
    for node, spent in busy.items():
        seconds[workers.types[node]] += spent
        granted[workers.types[node]] += 1
    return RoundRecord(now, length, seconds, granted, running, 0, 0, 0)
