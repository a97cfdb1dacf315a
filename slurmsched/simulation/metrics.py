"""Metrics of a simulated run: completion times, fairness, utilization."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.simulation.results import SimulationResult


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run. Times are in seconds, fractions between 0 and 1; NaN where there is nothing to average.

    JCT, the job completion time, is from arrival to end, of the measured jobs that completed. `makespan_s` is from the
    first arrival to the last end. Utilizations cover the whole run and all its jobs: the fraction of GPU time whose
    work was kept (not idle, restarting or lost), and the fraction of CPU time allocated to jobs. `ftf_max` and
    `ftf_mean` are finish-time fairness, see `finish_time_fairness`. `share_min` is the smallest GPU time of a user over
    the mean of all users. `stranded` is the mean number of idle GPUs that the largest pending job could not use.
    `wall_s` and `cpu_s` are the simulation's own times, `decision_s_median` that of one decision.
    """

    policy: str
    order: str
    trace: str
    seed: int
    jobs: int
    finished: int
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    gpu_utilization: float
    cpu_utilization: float
    ftf_max: float
    ftf_mean: float
    avg_wait_s: float
    share_min: float
    stranded: float
    restarts: int
    migrations: int
    rounds: int
    wall_s: float
    cpu_s: float
    decision_s_median: float
    states: Mapping[str, int] = field(default_factory=dict)
    load: float | None = None


def run_metrics(run: SimulationResult) -> RunMetrics:
    """Computes the metrics of a run; times are NaN if no job has ended."""
    measured = run.measured_jobs
    completed = [job for job in measured if job.completed]
    times = np.array([job.jct for job in completed])
    waits = np.array([job.start - job.arrival for job in measured if job.start is not None])
    rho = finish_time_fairness(run)
    ends = [job.end for job in measured if job.end is not None]
    span = max(ends) - min(job.arrival for job in measured) if ends else float("nan")
    states: defaultdict[str, int] = defaultdict(int)
    for job in measured:
        states[job.state] += 1
    return RunMetrics(
        policy=run.policy,
        order=run.order,
        trace=run.trace,
        seed=run.seed,
        jobs=len(measured),
        finished=len(completed),
        avg_jct_s=_or_nan(np.mean, times),
        median_jct_s=_or_nan(np.median, times),
        p99_jct_s=_or_nan(lambda jcts: np.percentile(jcts, 99), times),
        makespan_s=span,
        gpu_utilization=_utilization(run, sum(job.useful for job in run.jobs), run.total_gpus),
        cpu_utilization=_utilization(run, sum(job.cpu_service for job in run.jobs), run.total_cpus),
        ftf_max=_or_nan(np.max, rho),
        ftf_mean=_or_nan(np.mean, rho),
        avg_wait_s=_or_nan(np.mean, waits),
        share_min=_share_min(run),
        stranded=_or_nan(np.mean, np.array([sample.stranded for sample in run.samples])),
        restarts=sum(job.restarts for job in measured),
        migrations=sum(job.migrations for job in measured),
        rounds=run.rounds,
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        decision_s_median=_or_nan(np.median, np.array(run.decisions)),
        states=dict(sorted(states.items())),
        load=run.load,
    )


def jct_cdf(run: SimulationResult) -> tuple[Floats, Floats]:
    """JCTs in seconds, ascending, and for each the fraction of the measured jobs with at most this JCT."""
    times = np.sort(np.array([job.jct for job in run.measured_jobs if job.completed]))
    return times, np.arange(1, len(times) + 1) / max(len(run.measured_jobs), 1)


def finish_time_fairness(run: SimulationResult) -> Floats:
    """Finish-time fairness of the measured jobs that completed (Themis, Mahajan et al., NSDI '20, section 3).

    JCT over the time on an equal share of the GPUs, given the mean number of jobs in the cluster during the job.
    """
    arrivals = np.array([job.arrival for job in run.jobs])
    last = max((job.end for job in run.jobs if job.end is not None), default=0.0)
    ends = np.array([last if job.end is None else job.end for job in run.jobs])
    first, stop = run.window or (0, len(run.jobs))
    indices = np.array([index for index in range(first, stop) if run.jobs[index].completed], dtype=int)
    if not len(indices):
        return np.zeros(0)
    times = np.maximum(ends[indices] - arrivals[indices], 1e-9)
    present = (
        _cumulative_presence(arrivals, ends, ends[indices]) - _cumulative_presence(arrivals, ends, arrivals[indices])
    ) / times
    work = np.array([run.jobs[index].work for index in indices])
    gpus = np.array([run.jobs[index].gpus for index in indices])
    fair_times = work * np.maximum(1.0, gpus * present / run.total_gpus)
    return np.asarray(times / np.maximum(fair_times, 1e-9), dtype=np.float64)


def _cumulative_presence(arrivals: Floats, ends: Floats, until: Floats) -> Floats:
    """The job-seconds that all jobs together have spent in the cluster by each of these times."""
    arrived, ended = np.sort(arrivals), np.sort(ends)
    arrival_sums, end_sums = (np.concatenate(([0.0], np.cumsum(times))) for times in (arrived, ended))
    came, left = (np.searchsorted(times, until, "right") for times in (arrived, ended))
    return np.asarray(came * until - arrival_sums[came] - (left * until - end_sums[left]), dtype=np.float64)


def _utilization(run: SimulationResult, seconds: float, total: float) -> float:
    ends = (job.end for job in run.jobs if job.end is not None)
    span = max(ends, default=0.0) - min((job.arrival for job in run.jobs), default=0.0)
    return seconds / (span * total) if span * total > 0 else float("nan")


def _share_min(run: SimulationResult) -> float:
    service: defaultdict[str, float] = defaultdict(float)
    for job in run.measured_jobs:
        service[job.user] += job.service
    mean = sum(service.values()) / max(len(service), 1)
    return min(service.values()) / mean if mean else float("nan")


def _or_nan(summary: object, values: Floats) -> float:
    return float(summary(values)) if callable(summary) and len(values) else float("nan")
