"""Sharing an amount by weight among those who want no more than so much each (weighted max-min fairness)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "filled"]

Floats = NDArray[np.float64]


def filled(amount: float, weights: Floats, caps: Floats) -> Floats:
    """What each gets: by weight, never above the cap; what one leaves goes to the others by their weights.

    Weights are above zero. All of `amount` is given out, unless the caps end first.
    """
    if caps.sum() <= amount:
        return caps.astype(np.float64)
    order = np.argsort(caps / weights, kind="stable")
    weight, cap = weights[order], caps[order]
    level = (amount - (np.cumsum(cap) - cap)) / (weights.sum() - (np.cumsum(weight) - weight))
    enough = int(np.argmax(level * weight <= cap))
    return np.minimum(caps, weights * max(float(level[enough]), 0.0))
