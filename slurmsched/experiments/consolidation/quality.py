"""HadarE, table IV: models trained by copies on several nodes against the same trained without, by as many steps.

The paper's models and data are not to be had. Here a small network is trained for real, on data that it meets again and
again and on data that it meets once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Final

from slurmsched.experiments.consolidation.copies import ALONE, Rules, Work, trained
from slurmsched.experiments.consolidation.network import adam, loss, sgd
from slurmsched.experiments.consolidation.samples import Samples
from slurmsched.experiments.experiment import Bound, Outcome, Row, Task

__all__ = ["quality"]

SPEEDS: Final = (4.0, 2.0, 1.0)
DRAWS: Final = 5
"""Networks and data, over which each figure is a mean."""

DATA: Final[Mapping[str, tuple[int | None, Work]]] = {
    "repeated": (1000, Work(3000, 100, adam, 0.01)),
    "new": (None, Work(12_000, 100, adam, 0.01)),
    "new, long rounds": (None, Work(12_000, 500, adam, 0.01)),
    "new, short": (None, Work(3000, 100, adam, 0.01)),
    "new, SGD": (None, Work(12_000, 100, sgd, 0.1)),
}
"""Samples, and the work. Learning rates are the best that we found for one copy on new data, in steps of three."""

_ONE: Final = "one copy"
FORKED: Final[Mapping[str, Rules]] = {
    "plain": Rules(job_schedule=False, ahead=False),
    "schedule": Rules(ahead=False),
    "ahead": Rules(),
    "ahead, optimizer anew": Rules(optimizer=False),
}
"""Ways of three copies at speeds 4:2:1."""

WAYS: Final = (_ONE, *FORKED)
HELD: Final = frozenset({("repeated", "schedule"), ("new", "ahead"), ("new, long rounds", "ahead")})
"""Not to be worse than one copy: what a script does that knows its data. Where it cannot be helped is only stated."""

_NOTES: Final[Mapping[str, str]] = {
    "repeated": "1000 noisy samples, 3000 steps, a round 100. The paper gains 3 to 11 % on data met again and again"
    " (table IV, squared errors). Copies go less far in as many steps, and overfit less: that is most of the gain.",
    "new": "Never the same sample twice, 12,000 steps, a round 100. Plain: a copy's schedule counts its own steps, and"
    " ends with four sevenths of them. Schedule: it goes by the job's steps. Ahead: rounds also begin beyond the mean.",
    "new, long rounds": "The same with rounds of 500 steps, each a twenty-fourth of the training.",
    "new, short": "3000 steps: one copy is not done learning by then, and every step less in a row shows.",
    "new, SGD": "12,000 steps by gradient descent with momentum instead of Adam, a round 100.",
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One training: which data, which way, which seed."""

    data: str
    way: str
    seed: int


def quality(task: Task) -> Outcome:
    """The loss of each way on each data. With `quick` of one seed, and nothing is held against anything."""
    draws = 1 if task.quick else DRAWS
    seeds = [seed * DRAWS + draw for seed in task.seeds for draw in range(draws)]
    cells = [_Cell(data, way, seed) for data in DATA for way in WAYS for seed in seeds]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = [(cell, pool.submit(_loss, cell)) for cell in cells]
        found = {cell: future.result() for cell, future in task.tracked(running, "training")}
    losses = {(data, way): [found[_Cell(data, way, seed)] for seed in seeds] for data in DATA for way in WAYS}
    return Outcome("hadare-quality", tuple(_rows(losses, HELD if not task.quick else ())))


def _loss(cell: _Cell) -> float:
    count, work = DATA[cell.data]
    samples = Samples(cell.seed, count)
    speeds, rules = (SPEEDS, FORKED[cell.way]) if cell.way in FORKED else (ALONE, Rules())
    return loss(trained(samples, cell.seed, work, speeds, rules), samples.inputs, samples.wanted)


def _rows(losses: Mapping[tuple[str, str], Sequence[float]], held: Collection[tuple[str, str]]) -> Iterator[Row]:
    for (data, way), own in losses.items():
        alone = fmean(losses[data, _ONE]) if way != _ONE else None
        bound = Bound.AT_MOST if (data, way) in held else Bound.STATED
        yield Row(f"{data}: {way}", "mse", fmean(own), None, alone, 0.0, bound, _NOTES[data])
        if len(own) > 1:
            yield Row(f"{data}: {way}, std. deviation", "mse", stdev(own), bound=Bound.STATED)
