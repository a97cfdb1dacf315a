"""What a run gave to jobs and users, by the intervals in which jobs held GPUs, and the measures of promises.

The measures share no code with the policies that they measure. Times are seconds from the trace's start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from scipy.optimize import linprog

from slurmsched.arrays import Floats
from slurmsched.backends.simulated import UsageInterval

Device = tuple[str, int]
"""A GPU: its node and its index there."""

DAY: Final = 86400.0
_ROUNDING: Final = 1e-6
"""Relative, of the solver."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job of a run. `gpus` is what it asks for, of which a part may be a fraction; `runs` are in order of start.

    `rates` is its work per second on each GPU type that it may use, relative to the type that durations refer to.
    `end` is None for a job that has not ended. A job that is not `managed` runs under plain Slurm.
    """

    job: str
    user: str
    gpus: float
    arrival: float
    rates: Mapping[str, float]
    runs: tuple[UsageInterval, ...] = ()
    end: float | None = None
    managed: bool = True


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run of `until` seconds: each GPU with its type, and what became of each job."""

    gpus: tuple[tuple[Device, str], ...]
    jobs: tuple[JobOutcome, ...]
    until: float
    types: Mapping[Device, str] = field(init=False)
    counts: Mapping[str, int] = field(init=False)
    """GPUs of each type."""

    def __post_init__(self) -> None:
        kinds = [kind for _, kind in self.gpus]
        object.__setattr__(self, "types", dict(self.gpus))
        object.__setattr__(self, "counts", {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)})

    def by_user(self) -> Mapping[str, Sequence[JobOutcome]]:
        """The jobs of each user, in order."""
        jobs = defaultdict[str, list[JobOutcome]](list)
        for job in self.jobs:
            jobs[job.user].append(job)
        return jobs


def max_min_fair(demands: Floats, capacity: float) -> Floats:
    """Returns the max-min fair amounts: as much as each asks for, or else as much as any other who wants more gets."""
    amounts, left, waiting = np.zeros(len(demands)), capacity, np.arange(len(demands))
    while len(waiting):
        level = left / len(waiting)
        modest = waiting[demands[waiting] <= level]
        if not len(modest):
            amounts[waiting] = level
            break
        amounts[modest] = demands[modest]
        left -= float(demands[modest].sum())
        waiting = waiting[demands[waiting] > level]
    return amounts


def demand_periods(groups: Sequence[Sequence[JobOutcome]], until: float) -> Iterator[tuple[float, Floats]]:
    """Returns the periods between arrivals and ends: seconds, and the GPUs that each group's present jobs ask for."""
    spans = [(job.arrival, until if job.end is None else job.end) for jobs in groups for job in jobs]
    edges = sorted({0.0, until, *(min(edge, until) for span in spans for edge in span)})
    widths = np.array([job.gpus for jobs in groups for job in jobs])
    owners = np.array([index for index, jobs in enumerate(groups) for _ in jobs])
    starts, ends = (np.array(side) for side in zip(*spans, strict=True))
    for begin, finish in pairwise(edges):
        present = (starts <= begin) & (ends >= finish)
        demands = np.bincount(owners[present], widths[present], len(groups))
        yield finish - begin, np.asarray(demands, dtype=np.float64)


def held_gpu_seconds(jobs: Sequence[JobOutcome]) -> float:
    """Returns the GPU-seconds that the jobs held, at work or not."""
    return sum(run.gpu_seconds for job in jobs for run in job.runs)


def share_ratios(run: SiteRun, *, by_job: bool = False) -> Mapping[str, float]:
    """Returns for each user the GPU time held over the time due, which is the max-min fair part of all GPUs while the
    user's jobs were present. With `by_job` the same for each job."""
    groups = {job.job: [job] for job in run.jobs} if by_job else run.by_user()
    due = np.zeros(len(groups))
    for seconds, demands in demand_periods(list(groups.values()), run.until):
        due += seconds * max_min_fair(demands, len(run.gpus))
    return {name: held_gpu_seconds(jobs) / owed for (name, jobs), owed in zip(groups.items(), due, strict=True) if owed}


def work_done(jobs: Sequence[JobOutcome]) -> float:
    """Returns the work that was kept, in GPU-seconds of the type that durations refer to."""
    return sum(run.useful_seconds * run.rate * run.gpus for job in jobs for run in job.runs)


def work_of(run: SiteRun, user: str) -> float:
    """Returns the work of a user's jobs that was kept."""
    return work_done(run.by_user()[user])


def partition_ratios(run: SiteRun) -> Mapping[str, float]:
    """Returns for each user the work done over that on an equal part of each GPU type, the fastest first, which nobody
    else may use. All jobs of a user are taken to run at the rates of the first one."""
    users = run.by_user()
    partition = {kind: count / len(users) for kind, count in run.counts.items()}
    ratios = dict[str, float]()
    for user, jobs in users.items():
        rates, own = jobs[0].rates, 0.0
        fastest_first = sorted(rates, key=lambda kind: -rates[kind])
        for seconds, demands in demand_periods([jobs], run.until):
            left = float(demands[0])
            for kind in fastest_first:
                used = min(left, partition.get(kind, 0.0))
                own, left = own + seconds * used * rates[kind], left - used
        if own:
            ratios[user] = work_done(jobs) / own
    return ratios


def useful_part(run: SiteRun) -> float:
    """Returns the part of the held GPU time in which jobs did work that was kept: no restarts, nothing lost."""
    held = held_gpu_seconds(run.jobs)
    useful = sum(piece.useful_seconds * piece.gpus for job in run.jobs for piece in job.runs)
    return useful / held if held else 0.0


def longest_wait(run: SiteRun, within: float) -> float:
    """Returns the longest wait for a first start, of the managed jobs that came at least `within` before the end; the
    time until the end for one that never started."""
    waits = [
        (job.runs[0].start if job.runs else run.until) - job.arrival
        for job in run.jobs
        if job.managed and job.arrival + within <= run.until
    ]
    return max(waits, default=float("nan"))


def most_restarts(run: SiteRun) -> float:
    """Returns the most restarts of a managed job within any 24 hours."""
    most = 0
    for job in run.jobs:
        starts = np.array([piece.start for piece in job.runs[1:]]) if job.managed else np.zeros(0)
        within = np.searchsorted(starts, starts + DAY, "left") - np.arange(len(starts))
        most = max(most, int(within.max(initial=0)))
    return float(most)


def slowest_rate(run: SiteRun) -> float:
    """Returns the lowest rate of any run of a managed job over that of its GPU-proportional share on the same type."""
    return min(
        (
            piece.rate / min(job.rates[run.types[device]] for device in piece.devices)
            for job in run.jobs
            if job.managed
            for piece in job.runs
        ),
        default=float("nan"),
    )


def unpaired_while_idle(run: SiteRun, lasting: float) -> float:
    """Returns the part of all starts that did not share a GPU while another one was idle.

    A GPU that the job may use counts as idle if it is for `lasting` seconds from the start on: one that is taken in the
    same round is not.
    """
    held = defaultdict[Device, list[tuple[float, float, str]]](list)
    for job in run.jobs:
        for piece in job.runs:
            for device in piece.devices:
                held[device].append((piece.start, piece.end, job.job))
    starts = paired = 0
    for job in run.jobs:
        for piece in job.runs:
            starts += 1
            shared = any(
                other != job.job and begin <= piece.start < end
                for device in piece.devices
                for begin, end, other in held[device]
            )
            paired += shared and any(
                all(end <= piece.start or begin >= piece.start + lasting for begin, end, _ in held[device])
                for device, kind in run.gpus
                if kind in job.rates
            )
    return 1 - paired / starts if starts else float("nan")


def type_match(run: SiteRun) -> float:
    """Returns how well types went to jobs: 1 where the GPU time that each job held could not have done more work on
    other types, 0 where it could not have done less.

    The best and the worst are transports of the jobs' GPU time over the GPU time of the types, two linear programs.
    0 if no job ran, NaN if types make no difference.
    """
    pairs = [(index, kind) for index, job in enumerate(run.jobs) for kind in job.rates if kind in run.counts]
    numbers = {pair: number for number, pair in enumerate(pairs)}
    rates = np.array([run.jobs[index].rates[kind] for index, kind in pairs])
    had = np.zeros(len(pairs))
    for index, job in enumerate(run.jobs):
        for piece in job.runs:
            for device in piece.devices:
                had[numbers[index, run.types[device]]] += piece.gpu_seconds / len(piece.devices)
    if not had.any():
        return 0.0
    of_job = np.array([[index == row for index, _ in pairs] for row in range(len(run.jobs))], dtype=float)
    of_kind = np.array([[kind == row for _, kind in pairs] for row in run.counts], dtype=float)
    capacity = np.maximum(np.array([*run.counts.values()]) * run.until, of_kind @ had)
    worst, best = (
        float(rates @ linprog(sign * rates, A_ub=of_kind, b_ub=capacity, A_eq=of_job, b_eq=of_job @ had).x)
        for sign in (1.0, -1.0)
    )
    return (float(rates @ had) - worst) / (best - worst) if best - worst > _ROUNDING * best else float("nan")


def mean_completion(run: SiteRun) -> float:
    """Returns the mean time from arrival to end; of a job that has not ended the time so far."""
    return float(np.mean([(run.until if job.end is None else job.end) - job.arrival for job in run.jobs]))


def makespan(run: SiteRun) -> float:
    """Returns the time until the last job has ended."""
    return max(run.until if job.end is None else job.end for job in run.jobs)
