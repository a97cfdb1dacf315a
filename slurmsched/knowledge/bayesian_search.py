"""Bayesian optimisation over parallelism strategies within a budget of profiling runs (Tesserae, section 4.3).

A few random candidates are measured first, then always the one with the greatest expected improvement (Snoek,
Larochelle and Adams, NIPS 2012, section 2.2). The rates of the others are estimated by scikit-learn's Gaussian process
with a squared-exponential kernel over standardised features, whose length scale is the most likely one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.stats import norm

from slurmsched.arrays import Floats
from slurmsched.model import SynschedError

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

_LENGTH_SCALES: Final = (0.5, 4.0)
"""The least and the greatest length scale of the kernel, in standard deviations of the features."""
_NOISE_VARIANCE: Final = 1e-3
"""Variance of the measurement noise, relative to that of the values."""


class NoScikitLearnError(SynschedError):
    """scikit-learn is not installed; the message says how."""


MeasureRate = Callable[[int], float]
"""A profiling run of the candidate at an index: returns its rate, 0.0 if it does not fit into memory."""

_RANDOM_RUNS: Final = 4
"""Random runs before the first fit."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The `measured` rates by index of the candidate, in the order of the runs, and the `rates` of all candidates,
    measured or estimated."""

    measured: dict[int, float]
    rates: Floats

    @property
    def best(self) -> int:
        """The index of the fastest measured candidate."""
        return max(self.measured, key=lambda index: self.measured[index])


def bayesian_search(
    features: Sequence[Sequence[float]], measure: MeasureRate, budget: int, random: np.random.Generator
) -> SearchResult:
    """Measures up to `budget` candidates, at least one, chosen by expected improvement; `features` has their rows."""
    points = _standardised(np.array(features, dtype=np.float64))
    first = random.permutation(len(points))[: max(1, min(_RANDOM_RUNS, budget))]
    measured = {int(index): measure(int(index)) for index in first}
    while len(measured) < min(budget, len(points)):
        mean, spread = _predict(points, measured)
        gain = _expected_improvement(mean, spread, max(measured.values()))
        gain[list(measured)] = -1.0
        candidate = int(np.argmax(gain))
        measured[candidate] = measure(candidate)
    return SearchResult(measured, _estimated_rates(points, measured))


def random_search(
    features: Sequence[Sequence[float]], measure: MeasureRate, budget: int, random: np.random.Generator
) -> SearchResult:
    """The baseline: measures as many candidates, chosen at random, and estimates the others in the same way."""
    points = _standardised(np.array(features, dtype=np.float64))
    chosen = random.permutation(len(points))[: max(1, budget)]
    measured = {int(candidate): measure(int(candidate)) for candidate in chosen}
    return SearchResult(measured, _estimated_rates(points, measured))


def _standardised(points: Floats) -> Floats:
    deviation = points.std(axis=0)
    return np.asarray((points - points.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), dtype=np.float64)


def _predict(points: Floats, measured: dict[int, float]) -> tuple[Floats, Floats]:
    """Returns the mean and the standard deviation of the rate at each point, fitted to the measured ones."""
    process = _new_process()
    with warnings.catch_warnings(
        action="ignore"
    ):  # it warns of a length scale at its bounds, which is what they are for
        process.fit(points[list(measured)], np.array(list(measured.values())))
    mean, deviation = process.predict(points, return_std=True)
    return np.asarray(mean, dtype=np.float64), np.asarray(deviation, dtype=np.float64)


def _new_process() -> GaussianProcessRegressor:
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: PLC0415 an optional package
        from sklearn.gaussian_process.kernels import RBF  # noqa: PLC0415
    except ImportError:
        raise NoScikitLearnError(
            "searching parallelism strategies needs scikit-learn: pip install 'slurmsched[strategies]'"
        ) from None
    return GaussianProcessRegressor(RBF(1.0, _LENGTH_SCALES), alpha=_NOISE_VARIANCE, normalize_y=True)


def _estimated_rates(points: Floats, measured: dict[int, float]) -> Floats:
    rates = np.maximum(_predict(points, measured)[0], 0.0)
    rates[list(measured)] = list(measured.values())
    return rates


def _expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    deviation = np.maximum(spread, 1e-12)
    above = (mean - best) / deviation
    return np.asarray((mean - best) * norm.cdf(above) + deviation * norm.pdf(above), dtype=np.float64)
