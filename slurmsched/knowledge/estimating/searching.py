"""Bayesian optimisation over parallelism strategies within a budget of profiling runs (Tesserae, section 4.3).

A few strategies are measured at random; then always the one from which most improvement is expected (Snoek, Larochelle
and Adams, NIPS 2012, section 2.2). What was not measured is estimated in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from slurmsched.knowledge.estimating.gaussian import GaussianProcess

__all__ = ["Searched", "search", "search_at_random"]

Floats = NDArray[np.float64]
Measure = Callable[[int], float]
"""A profiling run of the candidate at this place: its rate, 0.0 where it does not fit into memory."""

_FIRST: Final = 4
"""Runs at random before anything is modelled."""


@dataclass(frozen=True, slots=True)
class Searched:
    """`measured` rates by place of the candidate, in the order of the runs; `rates` are of all candidates: measured, or
    estimated."""

    measured: dict[int, float]
    rates: Floats

    @property
    def best(self) -> int:
        """The fastest candidate that was measured."""
        return max(self.measured, key=lambda place: self.measured[place])


def search(features: Sequence[Sequence[float]], measure: Measure, budget: int, random: np.random.Generator) -> Searched:
    """Measure up to `budget` of the candidates, at least one."""
    points = _standardised(np.array(features, dtype=np.float64))
    first = random.permutation(len(points))[: max(1, min(_FIRST, budget))]
    measured = {int(place): measure(int(place)) for place in first}
    while len(measured) < min(budget, len(points)):
        mean, spread = _model(points, measured).at(points)
        gain = _expected_improvement(mean, spread, max(measured.values()))
        gain[list(measured)] = -1.0
        place = int(np.argmax(gain))
        measured[place] = measure(place)
    return Searched(measured, _estimated(points, measured))


def search_at_random(
    features: Sequence[Sequence[float]], measure: Measure, budget: int, random: np.random.Generator
) -> Searched:
    """The comparison: as many runs, chosen blindly; the estimate is the same."""
    points = _standardised(np.array(features, dtype=np.float64))
    chosen = random.permutation(len(points))[: max(1, budget)]
    measured = {int(place): measure(int(place)) for place in chosen}
    return Searched(measured, _estimated(points, measured))


def _standardised(points: Floats) -> Floats:
    deviation = points.std(axis=0)
    return np.asarray((points - points.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), dtype=np.float64)


def _model(points: Floats, measured: dict[int, float]) -> GaussianProcess:
    return GaussianProcess.fitted(points[list(measured)], np.array(list(measured.values())))


def _estimated(points: Floats, measured: dict[int, float]) -> Floats:
    rates = np.maximum(_model(points, measured).at(points)[0], 0.0)
    rates[list(measured)] = list(measured.values())
    return rates


def _expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    wide = np.maximum(spread, 1e-12)
    above = (mean - best) / wide
    return np.asarray((mean - best) * norm.cdf(above) + wide * norm.pdf(above), dtype=np.float64)
