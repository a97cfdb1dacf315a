"""What the generators draw: arrivals, durations, and one of several with given weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["PHILLY_WIDTHS", "drawn", "gavel_durations", "poisson", "stream"]

T = TypeVar("T")
Floats = NDArray[np.float64]

PHILLY_WIDTHS: Final[Mapping[int, float]] = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
"""GPUs per job, as Gavel (section 7.1) and Synergy's simulator have them after the Philly trace."""

HOUR: Final = 3600.0
MINUTE: Final = 60.0


def stream(seed: int, concern: str) -> np.random.Generator:
    """The random numbers of one concern."""
    return np.random.default_rng((seed, crc32(concern.encode())))


def poisson(jobs: int, rate: float, random: np.random.Generator) -> Floats:
    """Arrival times in seconds of a Poisson process with `rate` jobs per hour, the first one at 0."""
    gaps = random.exponential(HOUR / rate, jobs)
    gaps[:1] = 0.0
    return np.asarray(np.cumsum(gaps).round(3), dtype=np.float64)


def gavel_durations(jobs: int, random: np.random.Generator) -> Floats:
    """Seconds: 10^x minutes, x uniform in [1.5, 3] for four jobs in five and in [3, 4] for the fifth (Gavel, section
    7.1; Synergy, section 5.1)."""
    long = random.random(jobs) >= 0.8  # noqa: PLR2004  # the published figure
    exponent = np.where(long, random.uniform(3, 4, jobs), random.uniform(1.5, 3, jobs))
    return np.asarray((MINUTE * 10.0**exponent).round(3), dtype=np.float64)


def drawn(weights: Mapping[T, float], jobs: int, random: np.random.Generator) -> Sequence[T]:
    """One of the keys for each job, by their weights, which need not add up to anything."""
    keys, shares = list(weights), np.array(list(weights.values()), dtype=float)
    return [keys[place] for place in random.choice(len(keys), jobs, p=shares / shares.sum())]
