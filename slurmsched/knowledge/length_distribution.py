"""Distributions of run times: survival curves on a grid of times (Kaplan, Meier, JASA 1958), and their quantiles.

A curve is a row of probabilities by bin of `EDGES`. All rows are computed together; a test compares them with the
readable form, one job and one bin after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.knowledge.work import WorkKind
from slurmsched.model import ExpectedLength, JobId

BINS: Final = 256
LONGEST: Final = 100 * 86400.0
"""The end of the grid in seconds; what ran longer counts as that."""

EDGES: Final[Floats] = np.linspace(0.0, np.log(LONGEST), BINS + 1)
"""Natural logarithms of seconds: a bin is 6 % wide, and a curve is straight within it."""

LEVELS: Final[Floats] = (np.arange(101) + 0.5) / 101
"""The probabilities of the quantiles that a distribution keeps, the median among them."""

LEAST: Final = 1.0
"""The least seconds that a job has left."""

_WIDTH: Final = float(EDGES[1])

MEDIAN_OF_UNKNOWN: Final = 3600.0
"""The median in seconds of a job of which nothing is known: between those of Philly (1,144 s) and ITP (4,320 s and
more); 80 % end within a factor of 14 of it."""

_SPREAD_OF_UNKNOWN: Final = 1.2
"""The scale of that log-logistic curve."""


def bin_of(seconds: Floats) -> Ints:
    """Returns the bins of these times."""
    logs = np.log(np.clip(seconds, 1.0, LONGEST))
    return np.minimum((logs / _WIDTH).astype(np.int64), BINS - 1)


def survival_mass(ended: Floats, cut: Floats, wider: Floats, pseudo_runs: float) -> Floats:
    """Returns the probabilities by bin of runs of which `ended` by themselves and `cut` went on for longer, both as
    weights by bin, blended with the curve `wider`. All arrays are [row, bin].

    In every bin `wider` counts as that many runs among those that have come so far: where few have, the next end is
    not taken to be known from them alone. A run that was cut counts up to the end of its bin. The sums of rows are 1.
    """
    at_risk, left_of_wider = (np.cumsum(runs[:, ::-1], axis=1)[:, ::-1] for runs in (ended + cut, wider))
    expected = np.divide(wider, left_of_wider, out=np.zeros_like(wider), where=left_of_wider > 0)
    hazard = (ended + pseudo_runs * expected) / (at_risk + pseudo_runs)
    hazard[:, -1] = 1.0
    left = np.cumprod(1.0 - hazard, axis=1)
    hazard[:, 1:] *= left[:, :-1]
    return np.asarray(hazard / hazard.sum(axis=1, keepdims=True), dtype=np.float64)


def cumulated(mass: Floats) -> Floats:
    """Returns the probability to have ended by each of `EDGES`; [row, edge]."""
    sums = np.cumsum(mass, axis=1)
    return np.concatenate((np.zeros((len(mass), 1)), sums / sums[:, -1:]), axis=1)


def bell(centre: Floats, spread: Floats) -> Floats:
    """Returns log-normal curves around these seconds; `spread` is the standard deviation of the logarithm."""
    from scipy.special import ndtr  # noqa: PLC0415 a command that looks at no lengths starts faster without it

    logs = np.log(np.clip(centre, 1.0, LONGEST))[:, None]
    below = ndtr((EDGES[None, :] - logs) / spread[:, None])
    below[:, 0], below[:, -1] = 0.0, 1.0
    return np.diff(below, axis=1)


def of_unknown(medians: Floats) -> Floats:
    """Returns log-logistic curves around these medians; [row, bin]."""
    below = _ended_by(EDGES[None, :], np.log(medians)[:, None])
    below[:, 0], below[:, -1] = 0.0, 1.0
    return np.diff(below, axis=1)


def _ended_by(logs: Floats, log_median: Floats | float) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-(logs - log_median) / _SPREAD_OF_UNKNOWN)), dtype=np.float64)


def left_of_unknown(elapsed: float, limit: float | None) -> float:
    """Returns the mean seconds that a job still runs of which nothing is known but that it has run for so long, and
    that it ends by its time limit, which counts as none once it has passed: the longer it has run, the more."""
    until = LONGEST if limit is None or limit <= elapsed else min(limit, LONGEST)
    if elapsed >= until:
        return elapsed
    ended = 1.0 / (1.0 + exp(-log(max(elapsed, 1.0) / MEDIAN_OF_UNKNOWN) / _SPREAD_OF_UNKNOWN))
    return max((_runs_within(until) - _runs_within(elapsed)) / (1.0 - ended), LEAST)


def _runs_within(seconds: float) -> float:
    """Returns how long a job of which nothing is known runs within so many seconds, in the mean."""
    at = log(max(seconds, 1.0)) / _WIDTH
    left = min(int(at), BINS - 1)
    return _WITHIN_EDGE[left] + (_WITHIN_EDGE[left + 1] - _WITHIN_EDGE[left]) * (at - left)


def _within_edges() -> list[float]:
    still_runs, seconds = 1.0 - _ended_by(EDGES, log(MEDIAN_OF_UNKNOWN)), np.exp(EDGES)
    return [0.0, *np.cumsum((still_runs[1:] + still_runs[:-1]) / 2 * np.diff(seconds)).tolist()]


_WITHIN_EDGE: Final = _within_edges()


def quantile_logs(levels: Floats, rows: Ints, cdf: Floats) -> Floats:
    """Returns the logarithms of the quantiles at `levels` of these rows of `cdf`, [row, edge]."""
    shift = 2.0 * np.arange(len(cdf))[:, None]
    points = np.broadcast_to(EDGES, cdf.shape).ravel()
    return np.interp(np.clip(levels, 0.0, 1.0) + 2.0 * rows[:, None], (cdf + shift).ravel(), points)


def passed_at(logs: Floats, rows: Ints, cdf: Floats) -> Floats:
    """Returns the probability in each of these rows to have ended by these times, given by their logarithms."""
    at = np.clip(logs, 0.0, EDGES[-1]) / _WIDTH
    left = np.minimum(at.astype(np.int64), BINS - 1)
    return np.asarray(cdf[rows, left] + (cdf[rows, left + 1] - cdf[rows, left]) * (at - left), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class LengthDistribution:
    """How long a job runs, or still runs, in seconds at its own speed: `seconds` are the quantiles at `LEVELS`.

    They are corrected by what earlier ranges of the owner covered. `mean` is that of the uncorrected curve, since what
    widens a range is no reason to expect a longer run. `count` are the owner's runs of this `kind` that it comes from,
    `age` the seconds since the last of them ended.
    """

    seconds: Floats
    mean: float
    kind: WorkKind = WorkKind.OTHERS
    count: int = 0
    age: float | None = None

    def quantile(self, probability: float) -> float:
        """Returns the seconds within which it has ended with this probability."""
        return float(np.exp(np.interp(probability, LEVELS, np.log(self.seconds))))

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    @property
    def likely(self) -> tuple[float, float]:
        """The ends of the 80 % range."""
        return self.quantile(0.1), self.quantile(0.9)

    def remaining(self, elapsed: float) -> LengthDistribution:
        """Returns the distribution of what is left after so many seconds more.

        A job that has run for longer than all quantiles is taken to run for about as long again.
        """
        if elapsed >= self.seconds[-1]:
            left = elapsed * LEVELS / (1.0 - LEVELS)
        else:
            passed = float(np.interp(elapsed, self.seconds, LEVELS, left=0.0))
            levels = passed + (1.0 - passed) * LEVELS
            left = np.exp(np.interp(levels, LEVELS, np.log(self.seconds))) - elapsed
        left = np.maximum(left, LEAST)
        return LengthDistribution(left, float(left.mean()), self.kind, self.count, self.age)

    def scaled(self, speed: float) -> LengthDistribution:
        """Returns the distribution at `speed` times the speed: at twice the speed it is half as long."""
        return LengthDistribution(self.seconds / speed, self.mean / speed, self.kind, self.count, self.age)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """Returns `count` random lengths."""
        return np.exp(np.interp(random.random(count), LEVELS, np.log(self.seconds)))


LATEST: Final = 0.95
"""Where others are promised something, a job without a time limit is taken to have ended with this probability."""
_EXPECTED: Final = (0.1, 0.5, 0.9, LATEST)


def expected_lengths(known: Mapping[JobId, LengthDistribution]) -> Mapping[JobId, ExpectedLength]:
    """Returns what decisions need of each distribution: its mean and a few of its quantiles."""
    if not known:
        return {}
    logs = np.log(np.array([one.seconds for one in known.values()]))
    places = np.array(_EXPECTED) * len(LEVELS) - 0.5
    before = places.astype(np.int64)
    part = places - before
    rows = np.exp(logs[:, before] * (1.0 - part) + logs[:, before + 1] * part).round(1).tolist()
    return {
        job: ExpectedLength(
            round(one.mean, 1), median, low, high, latest, kind=one.kind.words, runs=one.count, age=one.age
        )
        for (job, one), (low, median, high, latest) in zip(known.items(), rows, strict=True)
    }


ALIKE_OF_OWNER: Final = 0.35
"""The correlation of what is off in the lengths of two jobs of one owner. The normal scores of Philly's lengths are
correlated by 0.5 from one job of an owner to the next, by 0.2 over fifty, and not between owners."""


def draw_scores(owners: Sequence[str], generator: np.random.Generator) -> Floats:
    """Returns standard normal values, one for each job of these owners: jobs of one owner run long or short together.

    A Gaussian copula with a common factor for each owner: the lengths of each job alone are as without.
    """
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
    common = generator.standard_normal(len(numbers))[[numbers[owner] for owner in owners]] if owners else 0.0
    own = generator.standard_normal(len(owners))
    return np.asarray(sqrt(ALIKE_OF_OWNER) * common + sqrt(1.0 - ALIKE_OF_OWNER) * own, dtype=np.float64)


def normal_quantiles(levels: Iterable[float]) -> Floats:
    """Returns the quantiles of the standard normal distribution at these probabilities."""
    return np.array([NormalDist().inv_cdf(level) for level in levels])


def lengths_at(known: Sequence[ExpectedLength], scores: Floats) -> Floats:
    """Returns the length of each job whose probability is that of a standard normal value, both [draw, job].

    Between the quantiles that are known the logarithm goes straight by that value, and on beyond them.
    """
    at = normal_quantiles(_EXPECTED)
    points = np.array([(one.low, one.median, one.high, one.latest) for one in known]).reshape(-1, len(at))
    logs = np.log(np.maximum.accumulate(np.maximum(points, LEAST), axis=1))
    part = np.clip(np.searchsorted(at, scores), 1, len(at) - 1) - 1
    job = np.broadcast_to(np.arange(len(known)), scores.shape)
    slope = np.diff(logs, axis=1) / np.diff(at)
    drawn = logs[job, part] + slope[job, part] * (scores - at[part])
    return np.asarray(np.exp(np.clip(drawn, log(LEAST), log(LONGEST))), dtype=np.float64)
