"""How well lengths of jobs are forecast from what ran before, on public traces split in time.

Philly (Jeon et al., ATC 2019) with its virtual clusters as owners, the same with the users that Chronus (Gao et al.,
SoCC 2021) drew, and ITP (Gu et al., ASPLOS 2023), which has no users: each of its clusters counts as one owner. Of each
the first 70 % of jobs are learnt, the others forecast at their submission from what was known until then. Jobs start
when they are submitted, since the traces do not say what waited.

Compared is with what schedulers use: the time limit, the user's mean, and the average of the user's last two jobs
(Tsafrir et al., TPDS 2007).
"""

from __future__ import annotations

import csv
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.experiments.experiment import Bound, FigureRow
from slurmsched.knowledge.lengths import LengthHistory, lengths_of
from slurmsched.knowledge.work import FinishedRun, UnfinishedJob
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
            history.add(finished_run(run, running.pop(number)))
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
    history = [finished_run(run, None) for run in runs]
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


def finished_run(run: TracedRun, likely: tuple[float, float] | None = None, limit: float = 0.0) -> FinishedRun:
    """The run as it counts once it is over; `likely` is the 80 % range that was forecast, `limit` its time limit."""
    return FinishedRun(
        owner=run.owner,
        model=run.model,
        gpus=run.gpus,
        limit=int(limit),
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


def together(clusters: Sequence[LengthForecasts]) -> LengthForecasts:
    """Returns the forecasts of several clusters as one."""
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


def poison_row(name: str, change: float) -> FigureRow:
    """The row of the largest relative change of a median by one owner of others' runs."""
    metric = f"lengths, {name}: most that one owner moves another's median"
    return FigureRow(metric, "part", change, None, None, 0.0, Bound.AT_MOST, _POISON_NOTE, MOST_MOVED)


def length_rows(name: str, known: LengthForecasts, seeds: Sequence[int]) -> Iterator[FigureRow]:
    """Yields the errors of ours against each of the others, and what the 80 % ranges cover."""
    seconds = np.array(known.seconds)
    limits = [chosen_limits(seconds, random_stream(seed, f"limits {name}")) for seed in seeds]
    note = _OWNER_NOTES.get(name, _NO_USERS_NOTE)
    for error, unit, measure in (("|log ratio|", "", _log_error), ("error", "s", median_error)):
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


def median_error(forecast: Floats, seconds: Floats) -> float:
    return float(np.median(np.abs(forecast - seconds)))
