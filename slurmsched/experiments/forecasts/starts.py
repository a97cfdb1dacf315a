"""How well starts of jobs are forecast, on weeks of Philly (Jeon et al., ATC 2019) with its virtual clusters as owners.

They are simulated on a small cluster that has about as much work as it can do. Jobs that still wait at the first look
after their submission are forecast then, and compared with when they start in the simulation, beside what
`squeue --start` tells: when they start if every job takes its whole time limit.

Nothing is forecast in the first two days. What is forecast in the next twelve only corrects the ranges, as the daemon
does it, and what is forecast in the fourteen after these counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf, nan, nextafter
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.backends.simulated import VirtualClock
from slurmsched.experiments.experiment import Bound, FigureRow
from slurmsched.experiments.forecasts.lengths import (
    DAY,
    HOUR,
    LEAST_COVERED,
    MOST_COVERED,
    ROUND,
    TracedRun,
    chosen_limits,
    finished_run,
    median_error,
    read_runs,
)
from slurmsched.knowledge.lengths import JobLengths, LengthHistory, unfinished_jobs
from slurmsched.knowledge.work import FinishedRun
from slurmsched.model import ExpectedLength, ExpectedTime, JobId, JobState, SchedulerState, Snapshot, StartRanges
from slurmsched.simulation.engine import SimulationEngine
from slurmsched.simulation.inputs import Scenario, SimulationOptions, parse_policy
from slurmsched.simulation.start_forecast import HORIZON, forecast_starts
from slurmsched.store.rows import ForecastRow
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import random_stream

CLUSTER: Final = "v100:8x8"
_GPUS: Final = 64
_LOAD: Final = 1.0
"""The work of the jobs drawn, in what the cluster can do while they are submitted."""

_WIDEST: Final = 16
"""Jobs with more GPUs are left out."""

WARM_UP: Final = 2 * DAY
"""When the first start is forecast."""
COUNTED_FROM: Final = 14 * DAY
"""Forecasts from then on count."""
FORECAST_UNTIL: Final = 28 * DAY
SIMULATED: Final = 30 * DAY
"""By then starts are known."""

_FROM: Final = 0.3
"""Weeks begin after this part of the jobs has been submitted, from which lengths are known."""

_LOOKS: Final = 2 * HOUR
"""From one forecast to the next."""

DRAWS: Final = ForecastRow.ENOUGH_DRAWS
"""The draws of a forecast: the fewest of which the daemon tells a range."""

POLICIES: Final = ("slurm",)


@dataclass(frozen=True, slots=True)
class ForecastWeeks:
    """Four weeks of a trace under a policy; the seed draws them, which of their jobs there are, and their limits."""

    path: Path
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class ForecastOfJob:
    """What was `told` of a job at this time, and when it started, in seconds from the begin of the simulation: by our
    median and the ends of the range of the draws, and by time limits.

    Infinite where that is after the end of the simulation, or after the horizon.
    """

    told: float
    started: float
    median: float
    low: float
    high: float
    by_limits: float

    @property
    def drawn(self) -> ExpectedTime:
        low, median, high = (None if time == inf else time for time in (self.low, self.median, self.high))
        return ExpectedTime(low, median, high)


def forecast_starts_of(weeks: ForecastWeeks) -> tuple[ForecastOfJob, ...]:
    """Simulates the weeks, and forecasts every two hours the starts of the jobs submitted since that still wait."""
    runs = read_runs(weeks.path)
    began, jobs = drawn_jobs(runs, weeks.seed)
    known = finished_before(runs, began, weeks.seed)
    options = SimulationOptions(early=3.0, completing=5.0, until=SIMULATED)
    engine = SimulationEngine(
        Scenario(load_cluster(CLUSTER).nodes, Trace("weeks", jobs)), parse_policy(weeks.policy), options
    )
    clock, begin = engine.clock, engine.clock.now()
    end, look_at = begin + SIMULATED, begin + WARM_UP
    looks = _Looks(engine, DRAWS, JobLengths(LengthHistory.of(known)), begin)
    while clock.now() < end:
        engine.daemon.run_due_round()
        if look_at <= clock.now() < begin + FORECAST_UNTIL:
            looks.look()
            look_at += _LOOKS
        engine.daemon.advance(min(clock.now() + options.period, end), end)
    return looks.compared()


def drawn_jobs(runs: Sequence[TracedRun], seed: int) -> tuple[float, tuple[TraceJob, ...]]:
    """Returns when the simulated time begins in the trace, and as many of its jobs as give the load."""
    random = random_stream(seed, "starts")
    first, last = runs[int(len(runs) * _FROM)].submitted, runs[-1].submitted - SIMULATED
    began = first + DAY * int(random.integers(0, max(1, int((last - first) / DAY))))
    there = [run for run in runs if 0 <= run.submitted - began < SIMULATED and 0 < run.gpus <= _WIDEST]
    work = sum(run.gpus * min(run.seconds, SIMULATED) for run in there)
    kept = random.random(len(there)) < _LOAD * _GPUS * SIMULATED / max(work, 1.0)
    drawn = [run for run, wanted in zip(there, kept, strict=True) if wanted]
    limits = chosen_limits(np.array([run.seconds for run in drawn]), random).tolist()
    return began, tuple(
        TraceJob(str(number), run.submitted - began, run.gpus, run.seconds, user=run.owner, time_limit=limit)
        for number, (run, limit) in enumerate(zip(drawn, limits, strict=True))
    )


def finished_before(runs: Sequence[TracedRun], began: float, seed: int) -> Sequence[FinishedRun]:
    """Returns the runs that had ended by then, with limits as those of the simulated jobs are chosen."""
    before = [run for run in runs if run.submitted + run.seconds <= began]
    limits = chosen_limits(np.array([run.seconds for run in before]), random_stream(seed, "limits before"))
    return [finished_run(run, limit=limit) for run, limit in zip(before, limits.tolist(), strict=True)]


@dataclass(slots=True)
class _Looks:
    """Forecasts of waiting jobs while a simulation runs, and the lengths that are learnt of it."""

    engine: SimulationEngine
    draws: int
    lengths: JobLengths
    began: float
    learnt_until: float = 0.0
    told: dict[JobId, tuple[float, ...]] = field(default_factory=dict)
    """For each job the time of the forecast, and the median, low, high and limits' start, in unix seconds."""

    def look(self) -> None:
        """Forecasts the jobs that were submitted since the last look and wait now."""
        snapshot, engine = self.engine.cluster.snapshot(), self.engine
        for run in engine.daemon.backend.finished_runs(nextafter(self.learnt_until, inf), snapshot.time).runs:
            self.lengths.ended(run)
        self.learnt_until = snapshot.time
        new = {
            job.id
            for job in snapshot.jobs_in_state(JobState.PENDING)
            if job.id not in self.told and not job.restarts and snapshot.time - job.submit_time <= _LOOKS + ROUND
        }
        if not new:
            return
        engine.store.record_poll(snapshot)
        state = SchedulerState() if engine.slurm_only else engine.store.load_state(snapshot)
        known = self.lengths.of(unfinished_jobs(snapshot, state.service, state.steps), snapshot.time)
        ours = self._starts(snapshot, replace(state, lengths={job: one for job, one in known.items() if one.runs}))
        by_limits = self._starts(snapshot, replace(state, lengths=_whole_limits(snapshot)), by_limits=True)
        for job in new & ours.keys():
            self.told[job] = snapshot.time, *ours[job], by_limits[job][0]

    def _starts(
        self, snapshot: Snapshot, state: SchedulerState, *, by_limits: bool = False
    ) -> Mapping[JobId, tuple[float, float, float]]:
        settings = self.engine.settings
        if by_limits:
            settings = replace(settings, policy=replace(settings.policy, system="slurm"))
        forecast = forecast_starts(
            snapshot,
            state,
            settings,
            self.engine.scenario.knowledge,
            np.random.default_rng((self.engine.options.seed, int(snapshot.time))),
            draws=1 if by_limits else self.draws,
            budget=inf,
            clock=VirtualClock(),
            horizon=1000 * DAY if by_limits else HORIZON,
        )
        times = {one.job: (one.start.median, one.start.low, one.start.high) for one in forecast.jobs}
        return {job: tuple(inf if time is None else time for time in start) for job, start in times.items()}  # type: ignore[misc]

    def compared(self) -> tuple[ForecastOfJob, ...]:
        """Returns what was forecast beside what happened."""
        cluster = self.engine.cluster
        starts = {job.id: job.start_time for job in cluster.jobs.values() if job.start_time is not None}
        starts |= {run.job: run.start for run in reversed(cluster.lifecycle.usage_intervals)}
        return tuple(
            ForecastOfJob(at - self.began, starts.get(job, inf) - self.began, *(time - self.began for time in told))
            for job, (at, *told) in self.told.items()
        )


def _whole_limits(snapshot: Snapshot) -> Mapping[JobId, ExpectedLength]:
    """How long jobs still run if all take their whole time limit."""
    jobs = snapshot.jobs_in_state(JobState.PENDING, JobState.RUNNING)
    left = {job.id: float(job.time_limit or 0) - job.run_time for job in jobs}
    return {job: ExpectedLength(seconds, seconds, seconds, seconds, seconds, runs=1) for job, seconds in left.items()}


@dataclass(frozen=True, slots=True)
class ToldRange:
    """What was told of a job and what became of it: the range as it had been corrected by then, in the same seconds."""

    forecast: ForecastOfJob
    range: ExpectedTime

    @property
    def is_known(self) -> bool:
        """Whether the start is known, or it is known to be after the range."""
        return self.forecast.started < SIMULATED or (self.range.high is not None and self.range.high < SIMULATED)

    @property
    def is_early(self) -> bool:
        low = self.forecast.told + HORIZON if self.range.low is None else self.range.low
        return self.forecast.started < low - 1.0

    @property
    def is_late(self) -> bool:
        return self.range.high is not None and self.forecast.started > self.range.high + 1.0


def told_ranges(forecasts: Sequence[ForecastOfJob]) -> tuple[tuple[ToldRange, ...], StartRanges]:
    """Returns the ranges as the daemon would have told them, each corrected by what was known of earlier ones at its
    look, and the last correction."""
    ranges, waiting, told = StartRanges(), list[ToldRange](), list[ToldRange]()
    for look, group in groupby(sorted(forecasts, key=lambda one: one.told), key=lambda one: one.told):
        unknown, outcomes, covered = list[ToldRange](), list[tuple[bool, bool]](), 0
        for one in waiting:
            forecast, started = one.forecast, one.forecast.started <= look
            until, time = forecast.told + HORIZON, min(forecast.started, look)
            outside = ranges.is_outside(forecast.drawn, forecast.told, until, time, started=started)
            if outside is None:
                unknown.append(one)
            else:
                outcomes.append(outside)
                covered += not (one.is_early or one.is_late)
        ranges = ranges.after(outcomes, covered, look) if outcomes else ranges
        new = [ToldRange(one, ranges.range_of(one.drawn, one.told, one.told + HORIZON)) for one in group]
        waiting, told = unknown + new, told + new
    return tuple(told), ranges


_NOTE: Final = (
    "Two weeks of Philly, by virtual clusters, on 8 nodes of 8 GPUs, after twelve days that only correct the ranges;"
    " seeds draw the weeks, which of their jobs there are, and their limits. These are drawn from how long jobs run, so"
    " that they tell more of it than real ones may. Later submissions are not foreseen."
    " squeue --start is Slurm's scheduler, simulated, with every job running for its whole limit; times after the"
    " simulation's end count as its end."
)
_MOST_OF_LIMITS: Final = 0.5


def start_rows(policy: str, forecasts: Mapping[int, Sequence[ForecastOfJob]]) -> Iterator[FigureRow]:
    """Yields what ranges cover, of all seeds and by seed, and the median error against that of time limits."""
    name, corrected = f"starts, philly, {policy}", {seed: told_ranges(each) for seed, each in forecasts.items()}
    counted = {
        seed: [one for one in told if one.forecast.told >= COUNTED_FROM] for seed, (told, _) in corrected.items()
    }
    known = {seed: [one for one in told if one.is_known] for seed, told in counted.items()}
    pooled = [one for told in known.values() for one in told]
    middle = (LEAST_COVERED + MOST_COVERED) / 2
    metric, tolerance = f"{name}: covered by 80 % ranges", MOST_COVERED / middle - 1
    covered = FigureRow(metric, "part", _covered(pooled), None, None, tolerance, Bound.EQUAL, _NOTE, middle)
    yield replace(covered, chosen_after=True)  # that two hours count as one, with the coverage of seeds 42 and 43 known
    errors = {seed: [_errors(told, each) for each in ("median", "by_limits")] for seed, told in counted.items() if told}
    worst = max((ours / max(limits, 1.0) for ours, limits in errors.values()), default=nan)
    metric = f"{name}: median error, in that of squeue --start, worst seed"
    yield FigureRow(metric, "part", worst, None, None, 0.0, Bound.AT_MOST, _NOTE, _MOST_OF_LIMITS)
    stated = [(f"covered, seed {seed}", "part", _covered(told)) for seed, told in known.items()]
    stated += [
        ("start before the range", "part", _part([one.is_early for one in pooled])),
        ("start after the range", "part", _part([one.is_late for one in pooled])),
        ("covered by ranges as they were drawn", "part", _covered([_as_drawn(one) for one in pooled])),
        ("median error, ours", "s", _mean([ours for ours, _ in errors.values()])),
        ("median error, squeue --start", "s", _mean([limits for _, limits in errors.values()])),
        ("jobs that waited", "jobs", float(len(pooled))),
        ("jobs of which the start was not known", "jobs", float(sum(map(len, counted.values())) - len(pooled))),
    ]
    for seed, (_, ranges) in corrected.items():
        stated += [
            (f"part below the median at the end, seed {seed}", "times", ranges.below),
            (f"part above the median at the end, seed {seed}", "times", ranges.above),
        ]
    for what, unit, figure in stated:
        yield FigureRow(f"{name}: {what}", unit, figure, bound=Bound.INFORMATIVE, note=_NOTE)


def _covered(told: Sequence[ToldRange]) -> float:
    return _part([not (one.is_early or one.is_late) for one in told])


def _as_drawn(told: ToldRange) -> ToldRange:
    return ToldRange(told.forecast, told.forecast.drawn)


def _part(those: Sequence[bool]) -> float:
    return fmean(those) if those else nan


def _mean(errors: Sequence[float]) -> float:
    return fmean(errors) if errors else nan


def _errors(told: Sequence[ToldRange], by: str) -> float:
    forecast, started = (np.array([getattr(one.forecast, of) for one in told]) for of in (by, "started"))
    return median_error(np.minimum(forecast, SIMULATED), np.minimum(started, SIMULATED))
