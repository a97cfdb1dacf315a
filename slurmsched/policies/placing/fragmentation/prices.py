"""What an idle part of a GPU is worth: prices of a cutting-stock program over the target workload.

The parts that tasks take are pieces, a GPU is the stock that they are cut from. The least number of GPUs that hold all
pieces of the workload is a linear program over the ways to cut one (Gilmore and Gomory, 1961), whose dual gives each
size a price, so that no way to cut is worth more than the whole GPU it takes. What is idle is worth the best set of
pieces that can still be cut from it: with pieces of 810 and 470, 530 left are worth a half, and 190 nothing.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from slurmsched.model import MILLI
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.fragmentation.task import Workload

__all__ = ["worth"]

Floats = NDArray[np.float64]

_STEP = 10
"""Sizes count in so many milli-GPU, rounded up."""
_UNITS = MILLI // _STEP
_NO_GAIN = 1 + 1e-9
_DIGITS = 9


def worth(workload: Workload) -> Floats:
    """The worth, in GPUs, of a device with 0, 1, ... 1000 milli-GPU idle; [1001]. Raises PolicyError where the program
    has no solution."""
    likely = defaultdict[int, float](float)
    for task, popularity in zip(workload.tasks, workload.popularity, strict=True):
        if task.partial:
            likely[-(-task.milli // _STEP)] += popularity
    sizes = sorted(likely)
    best = _best(sizes, _prices(sizes, [likely[size] for size in sizes]))[0]
    best[_UNITS] = 1.0
    return np.round(best[np.arange(MILLI + 1) // _STEP], _DIGITS)


def _prices(sizes: list[int], likely: list[float]) -> Floats:
    """Column generation: cut in one way only at first, and add the way worth most until none is worth more than 1."""
    if not sizes:
        return np.zeros(0)
    ways = [np.eye(len(sizes))[place] * (_UNITS // size) for place, size in enumerate(sizes)]
    while True:
        cut = linprog(np.ones(len(ways)), A_ub=-np.array(ways).T, b_ub=-np.array(likely), method="highs")
        if cut.x is None:
            raise PolicyError(f"no prices for parts of a GPU: {cut.message}")
        prices = np.maximum(0.0, -np.asarray(cut.ineqlin.marginals, dtype=np.float64))
        best, last = _best(sizes, prices)
        if best[_UNITS] <= _NO_GAIN:
            return prices
        ways.append(_way(sizes, last))


def _best(sizes: list[int], prices: Floats) -> tuple[Floats, list[int]]:
    """Unbounded knapsack: the most that so many units can be cut into, and the piece cut last, -1 for none."""
    best, last = np.zeros(_UNITS + 1), [-1] * (_UNITS + 1)
    for units in range(1, _UNITS + 1):
        best[units] = best[units - 1]
        for place, size in enumerate(sizes):
            if size <= units and best[units - size] + prices[place] > best[units] + 1e-12:
                best[units], last[units] = best[units - size] + prices[place], place
    return best, last


def _way(sizes: list[int], last: list[int]) -> Floats:
    way, units = np.zeros(len(sizes)), _UNITS
    while units > 0:
        if last[units] < 0:
            units -= 1
        else:
            way[last[units]] += 1
            units -= sizes[last[units]]
    return way
