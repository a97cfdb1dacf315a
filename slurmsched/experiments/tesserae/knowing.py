"""How far estimates of rates are off, by the way they are made (section 4.3, figure 18)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, Row
from slurmsched.experiments.tesserae.workload import kept_beside
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.estimating import Strategy, completed, search, search_at_random, strategies
from slurmsched.knowledge.gavel import REFERENCE, load_gavel_rates

__all__ = ["estimates", "simulated_rate"]

_TRIES: Final = 20
_BUDGET: Final = 8

_LINEAR: Final = "Of the models in Gavel's table that were measured at that width: rate of one GPU times their number."
_FILLED: Final = "Mean over Gavel's V100 pairs that were left out, and over {tries} choices of them."
_SIMULATED: Final = (
    "A simulated model of 24 layers on 8 GPUs, since nobody published rates of strategies: {budget} of its {all}"
    " strategies are measured; mean over {tries} searches."
)


def estimates(rates: Path, known: tuple[float, ...]) -> Iterator[Row]:
    """Of widths, of pairs where those parts of them are `known`, and of strategies."""
    knowledge = load_gavel_rates(rates)
    yield from _widths(knowledge)
    for part in known:
        yield from _pairs(knowledge, part)
    yield from _strategies()


def _widths(knowledge: Knowledge) -> Iterator[Row]:
    scalings = [known.scaling[REFERENCE] for known in knowledge.models.values()]
    for gpus in (2, 4, 8):
        real = [(scaling.at(1) * gpus, scaling.at(gpus)) for scaling in scalings if gpus in scaling.gpus]
        wrong = median(abs(said - rate) / rate for said, rate in real if rate)
        yield Row(f"linear model, {gpus} GPUs: median error", "x", wrong, bound=Bound.STATED, note=_LINEAR)


def _pairs(knowledge: Knowledge, part: float) -> Iterator[Row]:
    kept = kept_beside(knowledge, sorted(knowledge.models), REFERENCE)
    filled, guessed = list[float](), list[float]()
    for seed in range(_TRIES):
        random = np.random.default_rng(seed)
        holes = (kept > 0) & (random.random(kept.shape) >= part)
        measured = kept[(kept > 0) & ~holes]
        table = completed(np.where(holes, np.nan, kept))
        filled.append(float(abs(table - kept)[holes].mean()))
        guessed.append(float(abs(random.choice(measured, kept.shape) - kept)[holes].mean()))
    note = _FILLED.format(tries=_TRIES)
    name = f"{part:.0%} of pairs measured"
    yield Row(f"{name}, others completed: mean error", "", fmean(filled), bound=Bound.STATED, note=note)
    yield Row(f"{name}, others guessed: mean error", "", fmean(guessed), bound=Bound.STATED, note=note)


def _strategies() -> Iterator[Row]:
    candidates = strategies(8, 24)
    features, rates = [one.features for one in candidates], [simulated_rate(one) for one in candidates]
    note = _SIMULATED.format(budget=_BUDGET, all=len(candidates), tries=_TRIES)
    for name, way in (("Bayesian optimisation", search), ("random strategies", search_at_random)):
        found = [way(features, rates.__getitem__, _BUDGET, np.random.default_rng(seed)) for seed in range(_TRIES)]
        best = fmean(rates[one.best] for one in found) / max(rates)
        wrong = fmean(float(abs(one.rates - rates).mean()) for one in found) / fmean(rates)
        yield Row(f"{name}: rate of the best found", "x", best, bound=Bound.STATED, note=note)
        yield Row(f"{name}: mean error of all", "x", wrong, bound=Bound.STATED, note=note)


def simulated_rate(strategy: Strategy) -> float:
    """A made-up model: tensor parallelism talks, pipelines have bubbles and wait for their longest stage, the last one
    has more to do than its layers, and the whole model fits on no single GPU."""
    stages = len(strategy.layers)
    if strategy.tensor * stages == 1:
        return 0.0
    longest = max(*strategy.layers, strategy.layers[-1] + 1.5)
    even = sum(strategy.layers) / stages
    return float((1 - 0.3 * np.log2(strategy.tensor)) / (1 + 0.1 * (stages - 1)) * (even / longest) ** 2)
