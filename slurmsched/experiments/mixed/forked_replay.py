"""Replays HadarE: copies on nodes, a Job Tracker for each job, and rates refined by measurements (section V)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from slurmsched.experiments.mixed.problem import GpuWorkers, ReplayJob
from slurmsched.experiments.mixed.replay import ReplayError, ReplayResult, RoundRecord
from slurmsched.policies.hadare.job_tracker import ForkedJob, JobTracker, assign_nodes
from slurmsched.policies.hadare.throughput import ThroughputEstimates, learned_scale

CopyFailure = Callable[[int, int], float]
"""Returns when the copy on a node fails, in seconds from the start of the round; infinite if it does not."""

_MAX_IDLE_ROUNDS: Final = 50
"""Consecutive rounds without a step after which the replay fails."""

_UNMEASURED_SCALE: Final = 1e-12
"""Steps per second of one unit of the estimates before any measurement: so slow that no job ends in the first round and
all nodes take part in it."""


@dataclass(slots=True)
class _ForkedJobState:
    spec: ReplayJob
    tracker: JobTracker
    throughput: ThroughputEstimates


def replay_forked(
    jobs: Iterable[ReplayJob],
    workers: GpuWorkers,
    estimates: Mapping[str, Mapping[str, float]],
    *,
    period: float = 360.0,
    exchange_seconds: float = 5.0,
    failure_time: CopyFailure = lambda _number, _node: float("inf"),
) -> ReplayResult:
    """Runs one-GPU jobs that are all there at the start, in copies on every node, to their end.

    `estimates` is the throughput by model and GPU type, in any unit. In the first `exchange_seconds` of each round
    parameters are averaged and distributed, and no step is done. Raises ReplayError.
    """
    states = [
        _ForkedJobState(spec, JobTracker(spec.steps), ThroughputEstimates(estimates[spec.model])) for spec in jobs
    ]
    end_times: dict[str, float] = {}
    records: list[RoundRecord] = []
    now, idle_rounds = 0.0, 0
    while active := [job for job in states if not job.tracker.finished]:
        before = sum(job.tracker.remaining for job in active)
        scale = learned_scale(job.throughput for job in states) or _UNMEASURED_SCALE
        alive_until = [failure_time(len(records), node) - exchange_seconds for node in range(len(workers))]
        busy, finished_after = _run_round(active, workers, period - exchange_seconds, scale, alive_until)
        idle_rounds = idle_rounds + 1 if sum(job.tracker.remaining for job in active) == before else 0
        if idle_rounds > _MAX_IDLE_ROUNDS:
            raise ReplayError(f"job {active[0].spec.id} never ends: a step of it takes longer than a round")
        all_finished = all(job.tracker.finished for job in active)
        length = exchange_seconds + max(finished_after.values(), default=0.0) if all_finished else period
        end_times |= {
            job.spec.id: now + exchange_seconds + finished_after[job.spec.id] for job in active if job.tracker.finished
        }
        records.append(_forked_record(workers, now, length, busy, len(active)))
        now += length
    return ReplayResult(
        "hadare", tuple(job.spec for job in states), end_times, workers.gpus_by_type, tuple(records), ()
    )


def _run_round(
    jobs: Sequence[_ForkedJobState], workers: GpuWorkers, slot: float, scale: float, alive_until: Sequence[float]
) -> tuple[dict[int, float], dict[str, float]]:
    """Returns the busy seconds by node, and by job the seconds from the first step to its last one in the round."""
    forked_jobs = [
        ForkedJob(
            job.spec.id, job.tracker.remaining, tuple(job.throughput.rate_on(kind, scale) for kind in workers.gpu_types)
        )
        for job in jobs
    ]
    plan, busy, finished_after = assign_nodes(forked_jobs, slot), dict[int, float](), dict[str, float]()
    for job in jobs:
        steps_by_node = plan.get(job.spec.id, {})
        tracker = job.tracker.begin_round({node + 1: steps for node, steps in steps_by_node.items()})
        for node, steps in steps_by_node.items():
            gpu_type = workers.gpu_types[node]
            rate, time = job.spec.rates[gpu_type], max(0.0, min(slot, alive_until[node]))
            done = min(steps, floor(rate * time))
            busy[node] = done / rate if done == steps else time
            tracker = tracker.report(node + 1, tracker.round_number, done).end_copy(node + 1, tracker.round_number)
            if done:
                job.throughput = job.throughput.with_measurement(gpu_type, rate)
        job.tracker = tracker.close_round()
        finished_after[job.spec.id] = max((busy[node] for node in steps_by_node), default=0.0)
    return busy, finished_after


def _forked_record(
    workers: GpuWorkers, now: float, length: float, busy: Mapping[int, float], running: int
) -> RoundRecord:
    seconds = dict.fromkeys(workers.gpus_by_type, 0.0)
    granted = dict.fromkeys(workers.gpus_by_type, 0)
    for node, spent in busy.items():
        seconds[workers.gpu_types[node]] += spent
        granted[workers.gpu_types[node]] += 1
    return RoundRecord(now, length, seconds, granted, running, 0, 0, 0)
