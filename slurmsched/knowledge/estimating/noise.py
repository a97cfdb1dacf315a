"""Profiles that are wrong (Tesserae, section 7.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["noisy"]

Floats = NDArray[np.float64]


def noisy(rates: Floats, noise: float, random: np.random.Generator) -> Floats:
    """Each rate times one drawn evenly from 1 - noise to 1 + noise; `noise` from 0 to 1. What is 0 stays 0."""
    return np.asarray(rates * random.uniform(1 - noise, 1 + noise, rates.shape), dtype=np.float64)
