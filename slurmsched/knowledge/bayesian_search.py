"""Bayesian optimisation over parallelism strategies within a budget of profiling runs (Tesserae, section 4.3).

A few random candidates are measured first, then always the one with the greatest expected improvement (Snoek,
Larochelle and Adams, NIPS 2012, section 2.2). The rates of the others are estimated by a Gaussian process with exact
inference (Rasmussen and Williams, 2006, algorithm 2.1) and a squared-exponential kernel over standardised features,
whose length scale is the most likely one of a few.
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
"""Variance of the measurement noise, relative to that of the values."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A Gaussian process fitted to measured `points`, one row each.

    `mean` and `scale` are the mean and standard deviation of the measured values. `cholesky_factor` is the lower factor
    of the kernel matrix with noise; `weights` are the standardised values solved by it.
    """

    points: Floats
    length_scale: float
    cholesky_factor: Floats
    weights: Floats
    mean: float
    scale: float

    @classmethod
    def fit(cls, points: Floats, values: Floats) -> GaussianProcess:
        """Returns the process fitted to at least one point, with the most likely length scale."""
        mean, scale = float(values.mean()), float(values.std()) or 1.0
        unit = (values - mean) / scale
        fits = []
        for length in _LENGTH_SCALES:
            factor = cho_factor(_kernel(points, points, length) + _NOISE_VARIANCE * np.eye(len(points)), lower=True)[0]
            weights = cho_solve((factor, True), unit)
            log_likelihood = -0.5 * float(unit @ weights) - float(np.log(np.diag(factor)).sum())
            fits.append((log_likelihood, length, factor, weights))
        _, length, factor, weights = max(fits, key=lambda fit: fit[0])
        return cls(points, length, factor, weights, mean, scale)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns the mean and the standard deviation at each point."""
        across = _kernel(self.points, points, self.length_scale)
        spread = 1.0 - (solve_triangular(self.cholesky_factor, across, lower=True) ** 2).sum(axis=0)
        return across.T @ self.weights * self.scale + self.mean, np.sqrt(np.maximum(spread, 0.0)) * self.scale


def _kernel(left: Floats, right: Floats, length: float) -> Floats:
    squared_distance = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squared_distance / (2 * length**2)), dtype=np.float64)


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
        mean, spread = _fit_process(points, measured).predict(points)
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


def _fit_process(points: Floats, measured: dict[int, float]) -> GaussianProcess:
    return GaussianProcess.fit(points[list(measured)], np.array(list(measured.values())))


def _estimated_rates(points: Floats, measured: dict[int, float]) -> Floats:
    rates = np.maximum(_fit_process(points, measured).predict(points)[0], 0.0)
    rates[list(measured)] = list(measured.values())
    return rates


def _expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    deviation = np.maximum(spread, 1e-12)
    above = (mean - best) / deviation
    return np.asarray((mean - best) * norm.cdf(above) + deviation * norm.pdf(above), dtype=np.float64)
