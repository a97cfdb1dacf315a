"""A Gaussian process over few points: what is known of a function where it was not measured, and how well.

Exact inference by a Cholesky factor (Rasmussen and Williams, 2006, algorithm 2.1) with a squared-exponential kernel
over standardised features; the length of the kernel is the most likely one of a few.

Bayesian optimisation over parallelism strategies within a budget of profiling runs (Tesserae, section 4.3).

A few strategies are measured at random; then always the one from which most improvement is expected (Snoek, Larochelle
and Adams, NIPS 2012, section 2.2). What was not measured is estimated in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.stats import norm

Floats = NDArray[np.float64]

_LENGTH_SCALES: Final = (0.5, 1.0, 2.0, 4.0)
_NOISE_VARIANCE: Final = 1e-3
"""Variance of a measurement, against the function's own."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """`points` that were measured, one row each; `mean` and `scale`, the deviation, of their values.

    `factor` is that of the kernel of `length` between the points, `weights` are the standardised values solved for it.
    """

    points: Floats
    length_scale: float
    cholesky_factor: Floats
    weights: Floats
    mean: float
    scale: float

    @classmethod
    def fit(cls, points: Floats, values: Floats) -> GaussianProcess:
        """To at least one measured point."""
        mean, scale = float(values.mean()), float(values.std()) or 1.0
        unit = (values - mean) / scale
        fits = []
        for length in _LENGTH_SCALES:
            factor = cho_factor(_kernel(points, points, length) + _NOISE_VARIANCE * np.eye(len(points)), lower=True)[0]
            weights = cho_solve((factor, True), unit)
            likely = -0.5 * float(unit @ weights) - float(np.log(np.diag(factor)).sum())
            fits.append((likely, length, factor, weights))
        _, length, factor, weights = max(fits, key=lambda fit: fit[0])
        return cls(points, length, factor, weights, mean, scale)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation at each of these points."""
        across = _kernel(self.points, points, self.length_scale)
        spread = 1.0 - (solve_triangular(self.cholesky_factor, across, lower=True) ** 2).sum(axis=0)
        return across.T @ self.weights * self.scale + self.mean, np.sqrt(np.maximum(spread, 0.0)) * self.scale


def _kernel(left: Floats, right: Floats, length: float) -> Floats:
    squared_distance = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squared_distance / (2 * length**2)), dtype=np.float64)


MeasureRate = Callable[[int], float]
"""A profiling run of the candidate at this place: its rate, 0.0 where it does not fit into memory."""

_RANDOM_RUNS: Final = 4
"""Runs at random before anything is modelled."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`measured` rates by place of the candidate, in the order of the runs; `rates` are of all candidates: measured, or
    estimated."""

    measured: dict[int, float]
    rates: Floats

    @property
    def best(self) -> int:
        """The fastest candidate that was measured."""
        return max(self.measured, key=lambda place: self.measured[place])


def bayesian_search(
    features: Sequence[Sequence[float]], measure: MeasureRate, budget: int, random: np.random.Generator
) -> SearchResult:
    """Measure up to `budget` of the candidates, at least one."""
    points = _standardised(np.array(features, dtype=np.float64))
    first = random.permutation(len(points))[: max(1, min(_RANDOM_RUNS, budget))]
    measured = {int(place): measure(int(place)) for place in first}
    while len(measured) < min(budget, len(points)):
        mean, spread = _fit_process(points, measured).predict(points)
        gain = _expected_improvement(mean, spread, max(measured.values()))
        gain[list(measured)] = -1.0
        candidate = int(np.argmax(gain))
        measured[candidate] = measure(candidate)
    return SearchResult(measured, _estimated_rates(points, measured))


def random_search(
    features: Sequence[Sequence[float]], measure: MeasureRate, budget: int, random: np.random.Generator
) -> SearchResult:
    """The comparison: as many runs, chosen blindly; the estimate is the same."""
    points = _standardised(np.array(features, dtype=np.float64))
    chosen = random.permutation(len(points))[: max(1, budget)]
    measured = {int(candidate): measure(int(candidate)) for candidate in chosen}
    return SearchResult(measured, _estimated_rates(points, measured))


def _standardised(points: Floats) -> Floats:
    deviation = points.std(axis=0)
    return np.asarray((points - points.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), dtype=np.float64)


def _fit_process(points: Floats, measured: dict[int, float]) -> GaussianProcess:
    return GaussianProcess.fit(points[list(measured)], np.array(list(measured.values())))


def _estimated_rates(points: Floats, measured: dict[int, float]) -> Floats:
    rates = np.maximum(_fit_process(points, measured).predict(points)[0], 0.0)
    rates[list(measured)] = list(measured.values())
    return rates


def _expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    wide = np.maximum(spread, 1e-12)
    above = (mean - best) / wide
    return np.asarray((mean - best) * norm.cdf(above) + wide * norm.pdf(above), dtype=np.float64)
