"""How well lengths of jobs and their starts are forecast from what ran before, on public traces split in time.

Philly (Jeon et al., ATC 2019) with its virtual clusters as owners, the same with the users that Chronus (Gao et al.,
SoCC 2021) drew, and ITP (Gu et al., ASPLOS 2023), which has no users: each of its clusters counts as one owner. Of each
the first 70 % of jobs are learnt, the others forecast at their submission from what was known until then. Jobs start
when they are submitted, since the traces do not say what waited.

Compared is with what schedulers use: the time limit, the user's mean, and the average of the user's last two jobs
(Tsafrir et al., TPDS 2007).

Starts are forecast on days of Philly with users, simulated on a small cluster that has about as much work as it can do:
jobs that still wait at the first look after their submission are forecast then, and compared with when they start in
the simulation, beside what `squeue --start` tells: when they start if every job takes its whole time limit.
"""

from __future__ import annotations

import csv
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import groupby
from math import inf, nan, nextafter
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.backends.simulated import VirtualClock
from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.knowledge.lengths import JobLengths, LengthHistory, lengths_of, unfinished_jobs
from slurmsched.knowledge.work import FinishedRun, UnfinishedJob
from slurmsched.model import ExpectedLength, JobId, JobState, SchedulerState, Snapshot
from slurmsched.simulation.engine import SimulationEngine
from slurmsched.simulation.inputs import Scenario, SimulationOptions, parse_policy
from slurmsched.simulation.start_forecast import HORIZON, forecast_starts
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import random_stream

LEARNT: Final = 0.7
"""The part of the jobs that is learnt before the first is compared."""

_RANGES_FROM: Final = 0.05
"""From this part on ranges are forecast, by what they cover they are corrected."""

ROUND: Final = 300.0
HOUR, DAY = 3600.0, 86400.0
USUAL_LIMITS: Final = (HOUR, 4 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY, 100 * DAY)
LEAST_COVERED, MOST_COVERED, MOST_MOVED = 0.78, 0.82, 0.01


@dataclass(frozen=True, slots=True)
class LengthTrace:
    """A trace by its name, its file below the data sets, and how it is read."""

    name: str
    path: str


TRACES: Final = (
    LengthTrace("philly", "philly.csv"),
    LengthTrace("philly, drawn users", "philly_users.csv"),
    *(LengthTrace(f"itp {number}", f"itp/cluster{number:02}.csv") for number in range(1, 8)),
)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A job of a trace; `submitted` and `seconds` in seconds."""

    submitted: float
    seconds: float
    gpus: int
    owner: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class LengthForecasts:
    """What was forecast of the jobs compared, in order, in seconds: our median and the ends of the 80 % range, the
    owner's mean and the average of his last two jobs, beside what they took. `owners` are numbers."""

    owners: Sequence[float]
    seconds: Sequence[float]
    median: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    owners_mean: Sequence[float]
    last_two: Sequence[float]


def read_runs(path: Path) -> tuple[TracedRun, ...]:
    """Returns the jobs of one of the three formats, as they were submitted. Those that did not run are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        runs = [_run(row) for row in csv.DictReader(file)]
    return tuple(sorted((run for run in runs if run.seconds > 0), key=lambda run: run.submitted))


def _run(row: Mapping[str, str]) -> TracedRun:
    if "cluster" in row:
        at = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp()
        return TracedRun(at, float(row["duration"]), int(row["num_gpus"]), row["cluster"])
    if "user" in row:  # in minutes
        at, seconds = 60 * float(row["submit_time"]), 60 * float(row["duration"])
        return TracedRun(at, seconds, int(row["num_gpu"]), row["user"], row["model_name"])
    return TracedRun(float(row["submission_time"]), float(row["duration"]), int(row["num_gpu"]), "all")


def forecast_lengths(path: Path) -> LengthForecasts:
    """Goes through the trace in rounds of five minutes: what is submitted in one is forecast by what was known at its
    begin."""
    runs, history, baselines = read_runs(path), LengthHistory(), _Baselines()
    begun, compared_from = int(len(runs) * _RANGES_FROM), int(len(runs) * LEARNT)
    ends, running = list[tuple[float, int]](), dict[int, tuple[float, float] | None]()
    owners = {owner: float(number) for number, owner in enumerate(sorted({run.owner for run in runs}))}
    rows = list[tuple[float, ...]]()
    for start, group in groupby(range(len(runs)), key=lambda number: runs[number].submitted // ROUND):
        now = start * ROUND
        while ends and ends[0][0] <= now:
            number = heappop(ends)[1]
            run = runs[number]
            history.add(_finished(run, running.pop(number)))
            baselines.add(run)
        new = [*group]
        running |= dict.fromkeys(new)
        if new[-1] >= begun:
            others = [_job(runs[number], number, now) for number in running]
            known = lengths_of([_job(runs[number], number, now) for number in new], history, now, others)
            for number in new:
                run, forecast = runs[number], known[str(number)]
                running[number] = forecast.likely
                if number >= compared_from:
                    of_job = owners[run.owner], run.seconds
                    rows.append((*of_job, forecast.median, *forecast.likely, *baselines.of(run.owner)))
        for number in new:
            heappush(ends, (runs[number].submitted + runs[number].seconds, number))
    return LengthForecasts(*(tuple(column) for column in zip(*rows, strict=True)))


def poisoned_medians(path: Path) -> float:
    """Returns the largest relative change of any other owner's median, for jobs of all sizes and of a newcomer, by one
    owner who has a tenth of all runs: of a second or of a hundred days instead of an hour, or none."""
    runs = read_runs(path)
    history = [_finished(run, None) for run in runs]
    now = max(run.ended_at for run in history)
    sizes = sorted({run.gpus for run in runs})
    jobs = [
        UnfinishedJob(id=f"{owner} {gpus}", owner=owner, gpus=gpus)
        for owner in sorted({run.owner for run in runs} | {"newcomer"})
        for gpus in sizes
    ]
    medians = list[Floats]()
    for seconds in (HOUR, 1.0, 100 * DAY, 0.0):  # a run of no seconds is none
        poison = [
            FinishedRun(owner="poisoner", gpus=sizes[number % len(sizes)], seconds=seconds, ended_at=now)
            for number in range(len(runs) // 9)
        ]
        known = lengths_of(jobs, LengthHistory.of([*history, *poison]), now)
        medians.append(np.array([known[job.id].median for job in jobs]))
    return max(float(np.abs(other / medians[0] - 1.0).max()) for other in medians[1:])


def _job(run: TracedRun, number: int, now: float) -> UnfinishedJob:
    elapsed = max(0.0, now - run.submitted)
    return UnfinishedJob(id=str(number), owner=run.owner, model=run.model, gpus=run.gpus, elapsed=elapsed)


def _finished(run: TracedRun, likely: tuple[float, float] | None) -> FinishedRun:
    return FinishedRun(
        owner=run.owner,
        model=run.model,
        gpus=run.gpus,
        seconds=run.seconds,
        ended_at=run.submitted + run.seconds,
        likely=likely,
    )


class _Baselines:
    """The mean of all and of the last two finished jobs, by owner; those of all owners for one without any."""

    def __init__(self) -> None:
        self._sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
        self._last = defaultdict[str, deque[float]](lambda: deque(maxlen=2))

    def add(self, run: TracedRun) -> None:
        for owner in (run.owner, ""):
            self._sums[owner][0] += run.seconds
            self._sums[owner][1] += 1
            self._last[owner].append(run.seconds)

    def of(self, owner: str) -> tuple[float, float]:
        known = owner if owner in self._sums else ""
        total, count = self._sums[known]
        return total / count, fmean(self._last[known])


def chosen_limits(seconds: Floats, random: np.random.Generator) -> Floats:
    """Returns time limits as users choose them: the next usual one above 1.5 to 10 times the run."""
    wanted = seconds * np.exp(random.uniform(np.log(1.5), np.log(10.0), len(seconds)))
    usual = np.array(USUAL_LIMITS)
    return np.asarray(usual[np.minimum(np.searchsorted(usual, wanted), len(usual) - 1)], dtype=np.float64)


def run_forecasts(setup: ExperimentSetup) -> ExperimentResult:
    """Forecasts the lengths of the jobs of all traces, and starts; with `quick` the lengths of two clusters of ITP."""
    traces = [trace for trace in TRACES if not setup.quick or trace.name in {"itp 1", "itp 5"}]
    paths = {trace.name: setup.data_file("traces", *trace.path.split("/")) for trace in traces}
    forecasts = setup.run_all(forecast_lengths, paths.values(), "forecasting lengths")
    known = {name: forecasts[path] for name, path in paths.items()}
    known["itp"] = _together([each for name, each in known.items() if name.startswith("itp")])
    rows = [row for name, each in known.items() for row in _rows(name, each, setup.seeds)]
    with_owners = {name: path for name, path in paths.items() if name.startswith("philly")}
    changes = setup.run_all(poisoned_medians, with_owners.values(), "poisoning")
    for name, path in with_owners.items():
        metric, bound = f"lengths, {name}: most that one owner moves another's median", Bound.AT_MOST
        rows.append(FigureRow(metric, "part", changes[path], None, None, 0.0, bound, _POISON_NOTE, MOST_MOVED))
    if "philly, drawn users" in paths:
        seeds = [(policy, seed) for policy in START_DRAWS for seed in setup.seeds]
        days = {one: ForecastDay(paths["philly, drawn users"], *one) for one in seeds}
        told = setup.run_all(forecast_starts_of, days.values(), "forecasting starts")
        for policy in START_DRAWS:
            rows += start_rows(policy, [told[days[policy, seed]] for seed in setup.seeds])
    return ExperimentResult("forecasts", tuple(rows))


def _together(clusters: Sequence[LengthForecasts]) -> LengthForecasts:
    columns = ([value for each in clusters for value in getattr(each, field.name)] for field in fields(LengthForecasts))
    return LengthForecasts(*columns)


_POISON_NOTE: Final = (
    "An owner with a tenth of all runs has runs of a second, of 100 days or none instead of such of an hour. Jobs of"
    " all sizes of the other owners and of somebody new are forecast at the end of the trace."
)
_LIMIT_NOTE: Final = (
    "The traces have no time limits. They are simulated as users choose them: the next of 1 h, 4 h, 12 h, 1 d, 2 d,"
    " 7 d and longer above 1.5 to 10 times the run. Compared is with the seed whose limits are nearest."
)
_OWNER_NOTES: Final = {
    "philly": "Owners are the 15 virtual clusters, since this form of the trace has no users.",
    "philly, drawn users": (
        "Users and models of this form of the trace were drawn, so that neither tells anything of the length."
    ),
}
_NO_USERS_NOTE: Final = "The trace has no users: the number of GPUs and what ran before in the cluster remain."


def _rows(name: str, known: LengthForecasts, seeds: Sequence[int]) -> Iterator[FigureRow]:
    """Yields the errors of ours against each of the others, and what the 80 % ranges cover."""
    seconds = np.array(known.seconds)
    limits = [chosen_limits(seconds, random_stream(seed, f"limits {name}")) for seed in seeds]
    note = _OWNER_NOTES.get(name, _NO_USERS_NOTE)
    for error, unit, measure in (("|log ratio|", "", _log_error), ("error", "s", _error)):
        ours = measure(np.array(known.median), seconds)
        others = {
            "simulated limits": min(measure(chosen, seconds) for chosen in limits),
            "the owner's mean": measure(np.array(known.owners_mean), seconds),
            "the last two": measure(np.array(known.last_two), seconds),
        }
        for other, limit in others.items():
            told = f"{_LIMIT_NOTE} {note}" if other == "simulated limits" else note
            metric = f"lengths, {name}: median {error}, at most that of {other}"
            yield FigureRow(metric, unit, ours, None, None, 0.0, Bound.AT_MOST, told, limit)
        cut = fmean(measure(np.minimum(known.median, chosen), seconds) for chosen in limits)
        metric = f"lengths, {name}: median {error}, cut at simulated limits"
        yield FigureRow(metric, unit, cut, bound=Bound.INFORMATIVE, note=_LIMIT_NOTE)
    covered = (seconds >= np.array(known.low)) & (seconds <= np.array(known.high))
    inside = float(covered.mean())
    middle = (LEAST_COVERED + MOST_COVERED) / 2
    metric, tolerance = f"lengths, {name}: covered by 80 % ranges", MOST_COVERED / middle - 1
    yield FigureRow(metric, "part", inside, None, None, tolerance, Bound.EQUAL, note, middle)
    by_owner = [float(covered[np.array(known.owners) == owner].mean()) for owner in sorted(set(known.owners))]
    for word, figure in (("least", min(by_owner)), ("most", max(by_owner))) if len(by_owner) > 1 else ():
        metric = f"lengths, {name}: {word} that is covered of one owner"
        yield FigureRow(metric, "part", figure, bound=Bound.INFORMATIVE, note=note)


def _log_error(forecast: Floats, seconds: Floats) -> float:
    return float(np.median(np.abs(np.log(forecast / seconds))))


def _error(forecast: Floats, seconds: Floats) -> float:
    return float(np.median(np.abs(forecast - seconds)))


CLUSTER: Final = "v100:8x8"
_GPUS: Final = 64
_LOAD: Final = 1.6
"""The work of the jobs drawn, in what the cluster can do while they are submitted. Much of it is of few long jobs, so
that with less hardly any job waits."""

_WIDEST: Final = 16
"""Jobs with more GPUs are left out."""

_WARM_UP, _SIMULATED = 2 * DAY, 6 * DAY
_FROM: Final = 0.3
"""Days begin after this part of the jobs has been submitted, from which lengths are known."""

START_DRAWS: Final = {"slurm": 30, "synergy/fifo": 10}
"""The policies under which starts are forecast, each with the draws of a forecast. Under `las` new jobs start within
the hour by preempting others, and there is nothing to forecast."""


@dataclass(frozen=True, slots=True)
class ForecastDay:
    """A day of a trace under a policy; the seed draws the day, which of its jobs there are, and their limits."""

    path: Path
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class StartForecasts:
    """When jobs started, in seconds from the look at which they were forecast: in fact, by our median and the ends of
    the 80 % range, and by time limits. Infinite where that is after the end of the simulation, or after the horizon."""

    started: Sequence[float] = ()
    median: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    by_limits: Sequence[float] = ()


def forecast_starts_of(day: ForecastDay) -> StartForecasts:
    """Simulates the day, and forecasts every hour the starts of the jobs submitted since that still wait."""
    runs = read_runs(day.path)
    began, jobs = drawn_jobs(runs, day.seed)
    known = [_finished(run, None) for run in runs if run.submitted + run.seconds <= began]
    options = SimulationOptions(early=3.0, completing=5.0, until=_SIMULATED)
    engine = SimulationEngine(
        Scenario(load_cluster(CLUSTER).nodes, Trace("day", jobs)), parse_policy(day.policy), options
    )
    looks = _Looks(engine, START_DRAWS[day.policy], JobLengths(LengthHistory.of(known)))
    clock, end, look_at = engine.clock, engine.clock.now() + _SIMULATED, engine.clock.now() + _WARM_UP
    last_look = look_at + DAY
    while clock.now() < end:
        engine.daemon.run_due_round()
        if look_at <= clock.now() <= last_look:
            looks.look()
            look_at += HOUR
        engine.daemon.advance(min(clock.now() + options.period, end), end)
    return looks.compared()


def drawn_jobs(runs: Sequence[TracedRun], seed: int) -> tuple[float, tuple[TraceJob, ...]]:
    """Returns when the simulated time begins in the trace, and as many of its jobs as give the load."""
    random = random_stream(seed, "starts")
    first, last = runs[int(len(runs) * _FROM)].submitted, runs[-1].submitted - _SIMULATED
    began = first + DAY * int(random.integers(0, max(1, int((last - first) / DAY))))
    there = [run for run in runs if 0 <= run.submitted - began < _SIMULATED and 0 < run.gpus <= _WIDEST]
    work = sum(run.gpus * min(run.seconds, _SIMULATED) for run in there)
    kept = random.random(len(there)) < _LOAD * _GPUS * _SIMULATED / max(work, 1.0)
    drawn = [run for run, wanted in zip(there, kept, strict=True) if wanted]
    limits = chosen_limits(np.array([run.seconds for run in drawn]), random).tolist()
    return began, tuple(
        TraceJob(str(number), run.submitted - began, run.gpus, run.seconds, user=run.owner, time_limit=limit)
        for number, (run, limit) in enumerate(zip(drawn, limits, strict=True))
    )


@dataclass(slots=True)
class _Looks:
    """Forecasts of waiting jobs while a simulation runs, and the lengths that are learnt of it."""

    engine: SimulationEngine
    draws: int
    lengths: JobLengths
    learnt_until: float = 0.0
    told: dict[JobId, tuple[float, ...]] = field(default_factory=dict)
    """For each job the time of the forecast, and the median, low, high and limits' start, in unix seconds."""

    def look(self) -> None:
        """Forecasts the jobs that were submitted in the last hour and wait now."""
        snapshot, engine = self.engine.cluster.snapshot(), self.engine
        for run in engine.daemon.backend.finished_runs(nextafter(self.learnt_until, inf), snapshot.time).runs:
            self.lengths.ended(run)
        self.learnt_until = snapshot.time
        new = {
            job.id
            for job in snapshot.jobs_in_state(JobState.PENDING)
            if job.id not in self.told and not job.restarts and snapshot.time - job.submit_time <= HOUR + ROUND
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

    def compared(self) -> StartForecasts:
        """Returns what was forecast beside what happened."""
        if not self.told:
            return StartForecasts()
        cluster = self.engine.cluster
        starts = {job.id: job.start_time for job in cluster.jobs.values() if job.start_time is not None}
        starts |= {run.job: run.start for run in reversed(cluster.lifecycle.usage_intervals)}
        at, *told = (np.array(column) for column in zip(*self.told.values(), strict=True))
        started = np.array([starts.get(job, inf) for job in self.told])
        return StartForecasts(*(tuple((times - at).round(3).tolist()) for times in (started, *told)))


def _whole_limits(snapshot: Snapshot) -> Mapping[JobId, ExpectedLength]:
    """How long jobs still run if all take their whole time limit."""
    jobs = snapshot.jobs_in_state(JobState.PENDING, JobState.RUNNING)
    left = {job.id: float(job.time_limit or 0) - job.run_time for job in jobs}
    return {job: ExpectedLength(seconds, seconds, seconds, seconds, seconds, runs=1) for job, seconds in left.items()}


_START_NOTE: Final = (
    "Days of Philly with drawn users on 8 nodes of 8 GPUs; seeds draw the day, which of its jobs there are, and their"
    " limits. Later submissions are not foreseen. squeue --start is Slurm's scheduler, simulated, with"
    " every job running for its whole limit; times after the simulation's end count as its end."
)


def start_rows(policy: str, days: Sequence[StartForecasts]) -> Iterator[FigureRow]:
    """Yields the error of the medians against that of time limits, in the worst of the days, and what ranges cover."""
    days = [day for day in days if day.started]
    name, ends = f"starts, philly, drawn users, {policy}", _SIMULATED - _WARM_UP
    errors = [
        [_error(np.minimum(told, ends), np.minimum(day.started, ends)) for told in (day.median, day.by_limits)]
        for day in days
    ]
    worst = max((ours / max(limits, 1.0) for ours, limits in errors), default=nan)
    metric = f"{name}: median error, in that of squeue --start, worst day"
    yield FigureRow(metric, "part", worst, None, None, 0.0, Bound.AT_MOST, _START_NOTE, 0.5, chosen_after=True)
    for who, each in (("ours", 0), ("squeue --start", 1)):
        mean = fmean(error[each] for error in errors) if errors else nan
        yield FigureRow(f"{name}: median error, {who}", "s", mean, bound=Bound.INFORMATIVE, note=_START_NOTE)
    started, low, high = (np.concatenate([getattr(day, side) for day in days]) for side in ("started", "low", "high"))
    early, late = float((started < low - 1.0).mean()), float((started > high + 1.0).mean())
    middle = (LEAST_COVERED + MOST_COVERED) / 2
    metric, tolerance = f"{name}: covered by 80 % ranges", MOST_COVERED / middle - 1
    yield FigureRow(
        metric, "part", 1.0 - early - late, None, None, tolerance, Bound.EQUAL, _START_NOTE, middle, chosen_after=True
    )
    for word, figure in (("start before", early), ("start after", late)):
        yield FigureRow(f"{name}: {word} the range", "part", figure, bound=Bound.INFORMATIVE, note=_START_NOTE)
    yield FigureRow(f"{name}: jobs that waited", "jobs", float(len(started)), bound=Bound.INFORMATIVE, note=_START_NOTE)
