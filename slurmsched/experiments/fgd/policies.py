"""The heuristics by name, as the experiment runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from slurmsched.experiments.fgd.filling import Placing
from slurmsched.policies.placing.fragmentation import (
    BestFit,
    Descent,
    DotProduct,
    GpuClustering,
    GpuPacking,
    MovingScores,
    PricedDescent,
    RandomFit,
    RandomScores,
    Scores,
)

__all__ = ["MOVES", "PUBLISHED", "placing"]

MOVES: Final = 100
"""The most tasks that `fgd_moving` moves in a run of some 10,900 arrivals."""

PUBLISHED: Final[Mapping[str, str]] = {
    "fgd": "FGD",
    "best_fit": "BestFit",
    "gpu_packing": "GpuPacking",
    "clustering": "GpuClustering",
    "dot_product": "DotProd",
    "random_fit": "Random",
}
"""The paper's names of those that it has."""

_SCORED: Final[Mapping[str, Placing]] = {
    "fgd": lambda idle, measure: Scores(idle, Descent(measure, rounded=True)),
    "fgd_argmin": lambda idle, measure: Scores(idle, Descent(measure)),
    "fgd_priced": lambda idle, measure: Scores(idle, PricedDescent(measure)),
    "fgd_moving": lambda idle, measure: MovingScores(idle, PricedDescent(measure), budget=MOVES),
    "best_fit": lambda idle, _measure: Scores(idle, BestFit(rounded=True)),
    "gpu_packing": lambda idle, _measure: Scores(idle, GpuPacking()),
    "clustering": lambda idle, _measure: Scores(idle, GpuClustering()),
    "dot_product": lambda idle, _measure: Scores(idle, DotProduct(rounded=True)),
}


def placing(name: str, seed: int) -> Placing:
    """As the authors run those of the paper: with whole scores. Raises KeyError for a name there is not."""
    if name == "random_fit":
        random = np.random.default_rng([seed, 1])
        return lambda idle, _measure: RandomScores(idle, RandomFit(random), random=random)
    return _SCORED[name]
