"""Every policy of the experiment by name, and one replay of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.tesserae.gavel import GavelPacked
from slurmsched.experiments.tesserae.orders import Order, fairness, least_attained, queued
from slurmsched.experiments.tesserae.policies import KeepingWorkers, Leases, Matching
from slurmsched.experiments.tesserae.promises import ByPriority, GavelRounds, Promises
from slurmsched.experiments.tesserae.replay import Deciding, replay
from slurmsched.experiments.tesserae.workload import Workload, kept_beside, weighed_pairs, workload
from slurmsched.knowledge.estimating import completed, noisy
from slurmsched.knowledge.gavel import load_gavel_rates
from slurmsched.policies.gavel import Objective
from slurmsched.policies.gavel.objectives import finish_time_fairness, least_attained_service
from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae.deciding import Reading
from slurmsched.policies.tesserae.layout import Floats
from slurmsched.policies.tesserae.seating import in_order
from slurmsched.simulation.figures import Figures, figures
from slurmsched.traces.generating import generate

__all__ = ["VARIANTS", "Cell", "measure"]

NODES, GPUS = 20, 4
"""The paper's servers have four GPUs each (section 6.1); 80 GPUs are twenty of them."""

_WORTH: Final = 1.0
"""Pairs have an edge only where together they do more than one of them alone."""

_OURS = Reading()
_ALONE = replace(_OURS, seating=in_order, widest=0)
_PAPER = Reading(in_order, lasting=False)
_UNNAMED = replace(_PAPER, renaming=False)

Made = Callable[[Floats, Ints], Deciding]


def _matching(name: str, order: Order, reading: Reading) -> Made:
    return lambda weights, _sizes: Matching(name, weights, order, reading)


def _workers_kept(name: str, order: Order) -> Made:
    return lambda weights, sizes: KeepingWorkers(name, Matching(name, weights, order, _UNNAMED), Leases(sizes))


def _over(name: str, objective: Objective, reading: Reading) -> Made:
    """Over the priorities of Gavel's program, whose books are of one replay."""

    def made(weights: Floats, _sizes: Ints) -> Matching:
        return Matching(name, weights, ByPriority(Promises(objective)), reading)

    return made


def _over_with_workers_kept(name: str, objective: Objective) -> Made:
    def made(weights: Floats, sizes: Ints) -> KeepingWorkers:
        chosen = Matching(name, weights, ByPriority(Promises(objective)), _UNNAMED)
        return KeepingWorkers(name, chosen, Leases(sizes))

    return made


def _gavel(name: str, objective: Objective, *, packed: bool) -> Made:
    return lambda _weights, sizes: GavelRounds(name, Promises(objective, packed), Leases(sizes))


# fmt: off
VARIANTS: Final[Mapping[str, Made]] = {
    # name                        order           parts of it
    "tiresias":          _matching("tiresias",    queued, _ALONE),
    "tiresias single":   _matching("single",      queued, replace(_PAPER, widest=1)),
    "gavel packed":      lambda _weights, sizes: GavelPacked("gavel packed", Leases(sizes)),
    "tesserae-t":        _matching("tesserae-t",  queued, _OURS),
    "text":              _matching("text",        queued, _PAPER),
    "text, no names":    _matching("no names",    queued, _UNNAMED),
    "text, gavel rule":  _workers_kept("gavel rule", queued),
    "no packing":        _matching("no packing",  queued, replace(_OURS, widest=0)),
    "no homes":          _matching("no homes",    queued, replace(_OURS, seating=in_order)),
    "no lasting pairs":  _matching("no pairs",    queued, replace(_OURS, lasting=False)),
    "no names":          _matching("no names",    queued, replace(_OURS, renaming=False)),
    "las: tesserae-t":   _matching("las",         least_attained, _OURS),
    "las: text":         _matching("las",         least_attained, _PAPER),
    "las: text, no names":   _matching("las",     least_attained, _UNNAMED),
    "las: text, gavel rule": _workers_kept("las", least_attained),
    "ftf":               _matching("ftf",         fairness, _ALONE),
    "tesserae-ftf":      _matching("tesserae-ftf", fairness, _OURS),
    "gavel":             _gavel("gavel",          least_attained_service, packed=False),
    "gavel: tesserae":   _over("gavel: tesserae", least_attained_service, _OURS),
    "gavel: text":       _over("gavel: text",     least_attained_service, _PAPER),
    "gavel: text, no names":   _over("gavel: no names", least_attained_service, _UNNAMED),
    "gavel: text, gavel rule": _over_with_workers_kept("gavel: gavel rule", least_attained_service),
    "gavel-ftf":         _gavel("gavel-ftf",      finish_time_fairness, packed=False),
    "gavel-ftf packed":  _gavel("gavel-ftf packed", finish_time_fairness, packed=True),
    "gavel-ftf: tesserae": _over("gavel-ftf: tesserae", finish_time_fairness, _OURS),
}
"""By name, given the weights of pairs and the GPUs of each node. `text` is the paper's reading, `tesserae-t` ours."""
# fmt: on


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay. `noise` and `known` spoil what packing is told of pairs, not what they do: how far each figure is
    off, and what part of them was measured. The others are completed from these or, with `guessed`, are any of these.
    `least` is what a pair must do together. `wide` is what it is not told: pairs on more than one GPU keep so many
    times as much as those on one."""

    variant: str
    rates: Path
    jobs: int = 900
    seed: int = 42
    trace: str = "shockwave"
    gpu_type: str = "v100"
    overhead: float = 60.0
    noise: float = 0.0
    known: float = 1.0
    guessed: bool = False
    least: float = _WORTH
    wide: float = 1.0


def measure(cell: Cell) -> Figures:
    """Raises ExperimentError, ProfileError."""
    if cell.variant not in VARIANTS:
        raise ExperimentError(f"there is no policy {cell.variant!r}: known are {', '.join(VARIANTS)}")
    jobs = _workload(cell)
    sizes: Ints = np.full(NODES, GPUS)
    policy = VARIANTS[cell.variant](weighed_pairs(_told(cell, jobs.kept), cell.least), sizes)
    return figures(replay(jobs, sizes, policy, overhead=cell.overhead))


def _workload(cell: Cell) -> Workload:
    trace = generate(cell.trace, cell.jobs, cell.seed, 80.0)
    known = load_gavel_rates(cell.rates)
    jobs = workload(trace, known, "v100")
    return replace(jobs, kept=kept_beside(known, jobs.models, cell.gpu_type), wide=cell.wide)


def _told(cell: Cell, kept: Floats) -> Floats:
    """What packing is told. Which pairs fit into memory together is known of all."""
    random = np.random.default_rng((cell.seed, 1))
    fits, told = kept > 0, kept
    if cell.known < 1:
        holes = fits & (random.random(kept.shape) >= cell.known)
        drawn = random.choice(kept[fits & ~holes], kept.shape)
        filled = np.where(holes, drawn, kept) if cell.guessed else completed(np.where(holes, np.nan, kept))
        told = np.where(fits, filled, 0.0)
    return np.clip(noisy(told, cell.noise, random), 0.0, None)
