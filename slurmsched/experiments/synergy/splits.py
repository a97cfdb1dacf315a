"""Mixes of image, language and speech jobs (figure 11, section 5.4): FIFO, jobs of up to 8 GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.synergy.sweep import DIFFERS, Cell, Measured, measured, window
from slurmsched.traces.generating import Split

__all__ = ["splits"]

SPLITS: Final[tuple[Split, ...]] = ((20, 70, 10), (33, 33, 33), (50, 0, 50))
MECHANISMS: Final = ("proportional", "greedy", "tune")
FULL: Final = (1.5, 2.5, 3.0, 3.5)
QUICK: Final = (3.0,)
_AS_GOOD: Final = 0.05
_SHAPE: Final = (
    "The published figure is a plot: at the split without language jobs Greedy is far worse than the proportional share"
    " and Tune as good as it. Loads are ours: widths of up to 8 GPUs fill 128 GPUs at about 3 jobs an hour. " + DIFFERS
)


def splits(task: Task) -> Outcome:
    """Raises ExperimentError, ProfileError."""
    rates, profiles = QUICK if task.quick else FULL, task.file("synergy", "profiles.json")
    cells = [
        Cell(mechanism, rate, task.seeds[0], window(task), profiles, split, multi=True)
        for split in SPLITS
        for rate in rates
        for mechanism in MECHANISMS
    ]
    found = measured(cells, task, "sweeping")
    series = {
        f"{mechanism} {split}": [
            (cell.rate, found[cell].jct) for cell in cells if (cell.mechanism, cell.split) == (mechanism, split)
        ]
        for split in SPLITS
        for mechanism in MECHANISMS
    }
    return Outcome("synergy-splits", tuple(_rows(found)), series)


def _rows(found: Mapping[Cell, Measured]) -> Iterator[Row]:
    for cell, figures in sorted(found.items(), key=lambda item: (SPLITS.index(item[0].split), item[0].rate)):
        name = f"{cell.split} {cell.rate:g}/h".replace(" ", "", 2)
        yield Row(f"{cell.mechanism} {name} mean JCT", "h", figures.jct, bound=Bound.STATED, note=_SHAPE)
    top = max(cell.rate for cell in found)
    jct = {(cell.mechanism, cell.split): figures.jct for cell, figures in found.items() if cell.rate == top}
    for split in SPLITS:
        name = f"{split} {top:g}/h".replace(" ", "", 2)
        tune = jct["tune", split] / jct["proportional", split]
        yield Row(f"tune over proportional {name}", "x", tune, 1.0, None, _AS_GOOD, Bound.AT_MOST, note=_SHAPE)
    hungry = SPLITS[-1]
    broken = jct["greedy", hungry] / jct["proportional", hungry]
    name = f"{hungry} {top:g}/h".replace(" ", "", 2)
    yield Row(f"greedy over proportional {name}", "x", broken, 1.0, None, -_AS_GOOD, Bound.AT_LEAST, note=_SHAPE)
