"""A Gaussian process over few points: what is known of a function where it was not measured, and how well.

Exact inference by a Cholesky factor (Rasmussen and Williams, 2006, algorithm 2.1) with a squared-exponential kernel
over standardised features; the length of the kernel is the most likely one of a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

__all__ = ["GaussianProcess"]

Floats = NDArray[np.float64]

_LENGTHS: Final = (0.5, 1.0, 2.0, 4.0)
_NOISE: Final = 1e-3
"""Variance of a measurement, against the function's own."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """`points` that were measured, one row each; `mean` and `scale`, the deviation, of their values.

    `factor` is that of the kernel of `length` between the points, `weights` are the standardised values solved for it.
    """

    points: Floats
    length: float
    factor: Floats
    weights: Floats
    mean: float
    scale: float

    @classmethod
    def fitted(cls, points: Floats, values: Floats) -> GaussianProcess:
        """To at least one measured point."""
        mean, scale = float(values.mean()), float(values.std()) or 1.0
        unit = (values - mean) / scale
        fits = []
        for length in _LENGTHS:
            factor = cho_factor(_kernel(points, points, length) + _NOISE * np.eye(len(points)), lower=True)[0]
            weights = cho_solve((factor, True), unit)
            likely = -0.5 * float(unit @ weights) - float(np.log(np.diag(factor)).sum())
            fits.append((likely, length, factor, weights))
        _, length, factor, weights = max(fits, key=lambda fit: fit[0])
        return cls(points, length, factor, weights, mean, scale)

    def at(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation at each of these points."""
        across = _kernel(self.points, points, self.length)
        spread = 1.0 - (solve_triangular(self.factor, across, lower=True) ** 2).sum(axis=0)
        return across.T @ self.weights * self.scale + self.mean, np.sqrt(np.maximum(spread, 0.0)) * self.scale


def _kernel(one: Floats, other: Floats, length: float) -> Floats:
    apart = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-apart / (2 * length**2)), dtype=np.float64)
