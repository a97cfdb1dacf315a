"""How long jobs run, by what the runs of the same work took: a distribution for every job.

Kinds of work (`Work`) go from the nearest to the widest, which is all runs of the owner. The curve of each is blended
with that of the next wider one, which counts as some runs. Recent runs count more.

An owner's runs count for that owner's jobs. Of others only a location is taken: every owner moves it by at most 1 %,
whatever his runs and their number (`_OWNERS_OF_FULL_WEIGHT`).
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.knowledge.length_distribution import (
    BINS,
    LEAST,
    LEVELS,
    LONGEST,
    MEDIAN_OF_UNKNOWN,
    LengthDistribution,
    bell,
    bin_of,
    cumulated,
    expected_lengths,
    of_unknown,
    passed_at,
    quantile_logs,
    survival_mass,
)
from slurmsched.knowledge.work import FinishedRun, Kind, UnfinishedJob, WorkKind
from slurmsched.model import AccountedRun, ExpectedLength, JobId, JobState, RunEnd, Snapshot

_RUNS_OF_MEMORY: Final = 1000
"""The most runs of a kind that count."""

_HALF_LIFE: Final = 200.0
"""Of two runs of a kind the one with that many others after it counts half."""

_PSEUDO_RUNS: Final = 5.0
"""As many runs the next wider kind counts, of any length that a job has reached."""

_LEAST_OWNERS: Final = 5
"""Fewer owners tell nothing of the jobs of another."""

_OWNERS_OF_FULL_WEIGHT: Final = 700
"""With fewer, what they tell counts less, so that none of them moves it by more than 1 %. A rule of which that is true
cannot come far from where it starts with few owners, whatever it is."""

_MOST_OF_ONE_OWNER: Final = log(20.0)
"""An owner whose jobs are further from `MEDIAN_OF_UNKNOWN` counts as if they were so far."""

_STEPS_OF_STRETCH: Final = (0.01, 0.05)
"""The least and the most by which one run makes ranges wider or narrower (Gibbs and Candes, NeurIPS 2021)."""

_MOST_STRETCHED: Final = 4.0
_NOT_STRETCHED: Final = (0.0, 0.0, 0)
_SAME: Final = 1e-6
_OUTSIDE: Final = 0.1
"""The part of runs that end before an 80 % range, and the part that end after it."""

_RIGHT_HINT: Final = log(1.25)
"""A hint within that factor was right."""

_HINTS_KEPT: Final = 50


@dataclass(slots=True)
class _Runs:
    """The last runs of one kind: their bins, -1 - bin for a run that was cut."""

    codes: array[int] = field(default_factory=lambda: array("h"))
    newest: float = 0.0

    def add(self, code: int, ended_at: float) -> None:
        self.codes.append(code)
        self.newest = max(self.newest, ended_at)
        if len(self.codes) > 2 * _RUNS_OF_MEMORY:
            del self.codes[:-_RUNS_OF_MEMORY]


@dataclass(slots=True)
class LengthHistory:
    """What is kept of all finished runs, in the order in which they ended. `add` is as cheap as a few look-ups."""

    ranges: int = 0
    """Runs whose length was forecast by a range."""
    ranges_right: int = 0
    """Those whose length was within it."""
    _kinds: defaultdict[Kind, _Runs] = field(default_factory=lambda: defaultdict(_Runs))
    _stretch: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    _hints: defaultdict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("b")))
    _votes: dict[int | None, dict[str, float]] = field(default_factory=dict)
    _changed: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def of(cls, runs: Iterable[FinishedRun]) -> LengthHistory:
        history = cls()
        for run in sorted(runs, key=lambda run: run.ended_at):
            history.add(run)
        return history

    def add(self, run: FinishedRun) -> None:
        """Adds a run. One without any run time tells nothing."""
        if not 0 < run.seconds < inf:
            return
        number = min(int(log(min(max(run.seconds, 1.0), LONGEST)) / log(LONGEST) * BINS), BINS - 1)
        for _, key in run.kinds_of_length():
            self._kinds[key].add(number if run.completed else -1 - number, run.ended_at)
        self._changed.add((run.owner, run.gpus))
        if run.likely is not None:
            self._count_range(run, run.likely)
        if run.hint and run.hint > 0 and (run.completed or run.seconds > run.hint):
            self._hints[run.owner].append(abs(log(run.seconds / run.hint)) <= _RIGHT_HINT)
            del self._hints[run.owner][:-_HINTS_KEPT]

    def _count_range(self, run: FinishedRun, likely: tuple[float, float]) -> None:
        """Stretches the owner's ranges by one more run: in the long run a tenth of the runs is below its range, and a
        tenth above, however they change. Counted is the range as it was when the run was submitted; a run that was cut
        at its time limit, which Slurm does some seconds later, is not beyond a range that ends there."""
        beyond = min(run.seconds, run.time_limit or inf) > likely[1] * (1.0 + _SAME)
        if not run.completed and not beyond:
            return
        below, above, seen = self._stretch.get(run.owner, _NOT_STRETCHED)
        least, most = _STEPS_OF_STRETCH
        step = max(least, min(0.5 / sqrt(seen + 1), most))
        short = run.seconds < likely[0] * (1.0 - _SAME)
        self.ranges += 1
        self.ranges_right += not (short or beyond)
        below += step * (short - _OUTSIDE)
        above += step * (beyond - _OUTSIDE)
        below, above = (max(-_MOST_STRETCHED, min(side, _MOST_STRETCHED)) for side in (below, above))
        self._stretch[run.owner] = below, above, seen + 1

    def count(self, key: Kind) -> int:
        """Returns how many runs of a kind count."""
        return min(len(self._kinds[key].codes), _RUNS_OF_MEMORY) if key in self._kinds else 0

    def tells_limits_apart(self, of_limit: Kind, wider: Kind) -> bool:
        """Returns whether runs of the wider kind had other time limits too: if not, each would count twice."""
        count = self.count(of_limit)
        return count == _RUNS_OF_MEMORY or count < self.count(wider)

    def newest(self, key: Kind) -> float:
        """Returns when the last run of a kind ended."""
        return self._kinds[key].newest

    def weights(self, keys: Sequence[Kind]) -> tuple[Floats, Floats]:
        """Returns the runs that ended by themselves and those that were cut, as weights by bin; both [kind, bin]."""
        codes = [self._kinds[key].codes[-_RUNS_OF_MEMORY:] if key in self._kinds else _NONE for key in keys]
        counts = np.array([len(of_kind) for of_kind in codes], dtype=np.int64)
        rows = np.repeat(np.arange(len(keys)), counts)
        later = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(rows))
        every = np.frombuffer(b"".join(of_kind.tobytes() for of_kind in codes), dtype=np.int16).astype(np.int64)
        return _by_bin(rows, every, 0.5 ** (later / _HALF_LIFE), len(keys), BINS)

    def stretch(self, owner: str) -> tuple[float, float]:
        """Returns by which factors the owner's ranges are wider than the curves below and above the median; times are
        measured by their logarithm."""
        below, above, _ = self._stretch.get(owner, _NOT_STRETCHED)
        return exp(below), exp(above)

    def weight_of_hint(self, owner: str) -> float:
        """Returns as how many runs a hinted duration counts: 4 if half of the owner's were right, 36 if nearly all."""
        known = self._hints.get(owner, _NO_HINTS)
        right = (sum(known) + 1.0) / (len(known) + 2.0)
        return 4.0 * right / (1.1 - right) * 1.2

    def median_of_others(self, gpus: int) -> float:
        """Returns the median in seconds that all owners' jobs tell of one of whose owner nothing is known.

        It is `MEDIAN_OF_UNKNOWN`, moved by what owners' medians say, half of it by those of jobs of that size. No
        owner moves it by more than 1 %.
        """
        self._count_votes()
        moved = (self._moved(self._votes.get(gpus, {})) + self._moved(self._votes.get(None, {}))) / 2
        return MEDIAN_OF_UNKNOWN * exp(moved)

    @staticmethod
    def _moved(votes: Mapping[str, float]) -> float:
        count = len(votes)
        if count < _LEAST_OWNERS:
            return 0.0
        # grows from nothing, so that it makes no great difference either whether an owner is the fifth
        part = (count - _LEAST_OWNERS + 1) / count
        return part * sum(votes.values()) / max(count, _OWNERS_OF_FULL_WEIGHT)

    def _count_votes(self) -> None:
        """Counts the medians of those owners again who have new runs."""
        for owner, gpus in self._changed:
            for size, key in ((gpus, (owner, gpus)), (None, (owner,))):
                codes = np.asarray(self._kinds[key].codes[-_RUNS_OF_MEMORY:])
                middle = float(np.median(np.where(codes < 0, -1 - codes, codes))) + 0.5
                off = middle / BINS * log(LONGEST) - log(MEDIAN_OF_UNKNOWN)
                self._votes.setdefault(size, {})[owner] = max(-_MOST_OF_ONE_OWNER, min(off, _MOST_OF_ONE_OWNER))
        self._changed.clear()


_NONE: Final = array("h")
_NO_HINTS: Final = array("b")


def _by_bin(rows: Ints, codes: Ints, weights: Floats, row_count: int, bins: int) -> tuple[Floats, Floats]:
    """Returns the weights of runs that ended (codes from 0) and of those that were cut (below 0); both [row, bin]."""
    cut = codes < 0
    cells = rows * bins + np.where(cut, -1 - codes, codes)
    size = row_count * bins
    both = [np.bincount(cells[which], weights[which], size).astype(np.float64) for which in (~cut, cut)]
    return both[0].reshape(row_count, bins), both[1].reshape(row_count, bins)


def lengths_of(
    jobs: Sequence[UnfinishedJob], history: LengthHistory, now: float, others: Sequence[UnfinishedJob] = ()
) -> Mapping[JobId, LengthDistribution]:
    """Returns how long each of `jobs` still runs, in seconds at its own speed, given that it has run for `elapsed`.

    Those of `jobs` and `others` that run count for their kinds too, as runs that are not over. No job runs beyond its
    time limit.
    """
    if not jobs:
        return {}
    curves = _Curves.of(jobs, history, _reached_by_kind((*jobs, *others)))
    mass, nearest = curves.mass, curves.row
    rows, totals = nearest, curves.runs
    told = [index for index, job in enumerate(jobs) if job.hint or (job.total_steps > 0 and job.steps > 0)]
    if told:
        own = _with_told([jobs[index] for index in told], history, mass[nearest[told]], totals[nearest[told]])
        rows = nearest.copy()
        rows[told] = len(mass) + np.arange(len(told))
        mass = np.concatenate((mass, own))
    seconds, means = _quantiles_left(jobs, rows, cumulated(mass), history)
    return {
        job.id: LengthDistribution(seconds[index], float(means[index]), *curves.source(index, now))
        for index, job in enumerate(jobs)
    }


def _quantiles_left(
    jobs: Sequence[UnfinishedJob], rows: Ints, cdf: Floats, history: LengthHistory
) -> tuple[Floats, Floats]:
    """Returns the quantiles of the seconds left at `LEVELS` from each job's row of the curves, stretched as the owner's
    ranges need it, [job, level], and the means of the curves as they are, [job]."""
    elapsed = np.array([max(job.elapsed, 0.0) for job in jobs])[:, None]
    limits = np.array([np.inf if job.time_limit is None else job.time_limit for job in jobs])[:, None]
    factors = {owner: history.stretch(owner) for owner in {job.owner for job in jobs}}
    stretch = np.array([factors[job.owner] for job in jobs])
    median = quantile_logs(np.full((len(jobs), 1), 0.5), rows, cdf)

    def left(factor: Floats) -> Floats:
        off = np.log(np.clip(elapsed, 1.0, LONGEST)) - median
        passed = passed_at((median + off / np.where(off < 0, factor[:, :1], factor[:, 1:]))[:, 0], rows, cdf)[:, None]
        off = quantile_logs(passed + (1.0 - passed) * LEVELS, rows, cdf) - median
        logs = np.minimum(median + off * np.where(off < 0, factor[:, :1], factor[:, 1:]), log(LONGEST))
        # longer than all that is known: about as long again
        total = np.where(passed < _CERTAIN, np.exp(logs), elapsed / (1.0 - LEVELS))
        left_over = np.minimum(total, np.maximum(limits, elapsed + LEAST)) - elapsed
        return np.asarray(np.maximum(left_over, LEAST), dtype=np.float64)

    return left(stretch), left(np.ones_like(stretch)).mean(axis=1)


_CERTAIN: Final = 1.0 - 1e-6


def _with_told(jobs: Sequence[UnfinishedJob], history: LengthHistory, mass: Floats, runs: Floats) -> Floats:
    """Returns the curves with what the owner told: the hinted duration is a run of much weight, and so is the length
    that the progress comes to, the more so the further the job is."""
    hints = np.array([job.hint or 1.0 for job in jobs])
    weights = np.array([history.weight_of_hint(job.owner) if job.hint else 0.0 for job in jobs])
    done = np.array([min(job.steps / job.total_steps, 1.0) if job.total_steps > 0 else 0.0 for job in jobs])
    elapsed = np.array([max(job.elapsed, 0.0) for job in jobs])
    reported = (done > 0) & (elapsed > 0)
    expected = np.where(reported, elapsed / np.where(done > 0, done, 1.0), 1.0)
    progress = np.where(reported, 30.0 * done / (1.02 - done), 0.0)
    blended = runs[:, None] * mass + weights[:, None] * bell(hints, np.full(len(jobs), 0.1))
    blended += progress[:, None] * bell(expected, 0.25 * (1.0 - done) + 0.02)
    return np.asarray(blended / blended.sum(axis=1, keepdims=True), dtype=np.float64)


@dataclass(slots=True)
class _Curves:
    """The curves of the jobs' kinds, [row, bin]: jobs with the same kinds share a row. `runs` is what a row counts."""

    mass: Floats
    runs: Floats
    row: Ints
    sources: Sequence[tuple[WorkKind, int, float | None]]

    def source(self, index: int, now: float) -> tuple[WorkKind, int, float | None]:
        """Returns the nearest kind with runs, their number and the age of the last one."""
        kind, count, newest = self.sources[index]
        return kind, count, None if newest is None else max(0.0, now - newest)

    @classmethod
    def of(
        cls, jobs: Sequence[UnfinishedJob], history: LengthHistory, running: Mapping[Kind, Sequence[int]]
    ) -> _Curves:
        chains = [job.kinds_of_length() for job in jobs]
        sizes = list(dict.fromkeys((job.owner, job.gpus) for job in jobs))
        start = {size: index for index, size in enumerate(sizes)}
        mass = of_unknown(np.array([history.median_of_others(gpus) for _, gpus in sizes]))
        runs = np.full(len(mass), _PSEUDO_RUNS)
        row = np.array([start[job.owner, job.gpus] for job in jobs], dtype=np.int64)
        sources: list[tuple[WorkKind, int, float | None]] = [(WorkKind.OTHERS, 0, None)] * len(jobs)
        for level in sorted(WorkKind, reverse=True)[1:]:
            keys = [next((key for kind, key in chain if kind is level), None) for chain in chains]
            known = {key: history.count(key) for key in dict.fromkeys(keys) if key is not None}
            wanted = dict[tuple[Kind, int], int]()
            for index, key in enumerate(keys):
                if key is None or not (known[key] or key in running):
                    continue
                if level is WorkKind.LIMIT and not history.tells_limits_apart(key, chains[index][1][1]):
                    continue
                wider = int(row[index])
                row[index] = len(mass) + wanted.setdefault((key, wider), len(wanted))
                if known[key]:
                    sources[index] = (level, known[key], history.newest(key))
            if not wanted:
                continue
            of_kind = list(dict.fromkeys(key for key, _ in wanted))
            place = {key: index for index, key in enumerate(of_kind)}
            ended, cut = history.weights(of_kind)
            cells = [place[key] * BINS + number for key in place.keys() & running.keys() for number in running[key]]
            np.add.at(cut.reshape(-1), cells, 1.0)
            chosen = np.array([place[key] for key, _ in wanted])
            ended, cut = ended[chosen], cut[chosen]
            nearer = survival_mass(ended, cut, mass[[wider for _, wider in wanted]], _PSEUDO_RUNS)
            mass = np.concatenate((mass, nearer))
            runs = np.concatenate((runs, _PSEUDO_RUNS + (ended + cut).sum(axis=1)))
        return cls(mass, runs, row, sources)


def _reached_by_kind(jobs: Iterable[UnfinishedJob]) -> Mapping[Kind, Sequence[int]]:
    """Returns the bins that unfinished jobs have reached, by kind."""
    begun = [job for job in jobs if job.elapsed > 0]
    reached = defaultdict[Kind, list[int]](list)
    for job, number in zip(begun, bin_of(np.array([job.elapsed for job in begun])).tolist(), strict=True):
        for _, key in job.kinds_of_length():
            reached[key].append(number)
    return reached


@dataclass(frozen=True, slots=True)
class FirstForecast:
    """What was forecast of a job of `owner` before it first ran, and the duration that its owner told."""

    job: JobId
    owner: str
    likely: tuple[float, float]
    hint: float | None = None


@dataclass(slots=True)
class JobLengths:
    """How long the jobs of a cluster run, kept up to date: fed with the runs that end, asked in every round.

    What is known of jobs is kept for a minute, for early rounds; new jobs are forecast at once.
    """

    history: LengthHistory = field(default_factory=LengthHistory)
    new: list[FirstForecast] = field(default_factory=list)
    """First forecasts that are not stored yet."""
    _first: dict[tuple[str, JobId], FirstForecast] = field(default_factory=dict)
    _before: dict[tuple[str, JobId], float] = field(default_factory=dict)
    _known: dict[JobId, ExpectedLength] = field(default_factory=dict)
    _known_at: float = -inf

    def recall(self, forecasts: Iterable[FirstForecast]) -> None:
        """Takes over what was forecast before."""
        self._first.update(((one.owner, one.job), one) for one in forecasts)

    def ended(self, run: AccountedRun) -> None:
        """Adds a run. Those of a job that is requeued count together once its last one has ended."""
        key = run.owner, run.job
        before = self._before.pop(key, 0.0)
        if run.end is RunEnd.REQUEUED:
            self._before[key] = before + run.seconds
            return
        first = self._first.pop(key, None)
        self.history.add(
            FinishedRun.of_run(
                run,
                seconds=before + run.seconds,
                ended_at=run.ended,
                completed=run.end in (RunEnd.COMPLETED, RunEnd.FAILED),
                time_limit=None if run.time_limit is None else before + run.time_limit,
                hint=first and first.hint,
                likely=first and first.likely,
            )
        )

    def of(self, jobs: Sequence[UnfinishedJob], now: float) -> Mapping[JobId, ExpectedLength]:
        """Returns how long each of the cluster's jobs still runs, all of which are `jobs`."""
        if not 0 <= now - self._known_at < _KEPT:
            self._known, self._known_at = {}, now
        asked = [job for job in jobs if job.id not in self._known]
        others = [job for job in jobs if job.id in self._known]
        self._known |= expected_lengths(lengths_of(asked, self.history, now, others))
        for job in asked:
            if job.elapsed == 0 and (job.owner, job.id) not in self._first:
                known = self._known[job.id]
                first = FirstForecast(job.id, job.owner, (known.low, known.high), job.hint)
                self._first[job.owner, job.id] = first
                self.new.append(first)
        return {job.id: self._known[job.id] for job in jobs}


_KEPT: Final = 60.0


def unfinished_jobs(
    snapshot: Snapshot,
    service: Mapping[JobId, float],
    steps: Mapping[JobId, int],
    origins: Mapping[JobId, tuple[str, str]] | None = None,
) -> Sequence[UnfinishedJob]:
    """Returns the jobs of a poll that wait or run, with the GPU-seconds of all their runs, the steps that they have
    reported, and their scripts and folders.

    Of a forked job all copies' steps count. Slurm gives every run the whole time limit.
    """
    jobs = tuple(snapshot.jobs_in_state(JobState.PENDING, JobState.RUNNING))
    copies = Counter[str]()
    for job in jobs:
        copies[job.copy_of] += steps.get(job.id, 0)
    unfinished = list[UnfinishedJob]()
    for job in jobs:
        run = job.run_time if job.state is JobState.RUNNING else 0.0
        elapsed = max(run, service.get(job.id, 0.0) / (snapshot.part_of_gpu(job) or max(job.gpus, 1)))
        script, folder = (origins or {}).get(job.id, ("", ""))
        unfinished.append(
            UnfinishedJob.of_job(
                job,
                script,
                folder,
                id=job.id,
                elapsed=elapsed,
                time_limit=None if job.time_limit is None else elapsed - run + job.time_limit,
                hint=job.hints.duration,
                steps=copies[job.copy_of] if job.copy_of else 0,
                total_steps=job.hints.fork or 0,
            )
        )
    return unfinished
