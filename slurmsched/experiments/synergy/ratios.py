"""What is gained where servers have more CPUs per GPU (figure 12, section 5.5): FIFO, one-GPU jobs, 9 jobs an hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.synergy.reference import RATIO_GAINS
from slurmsched.experiments.synergy.sweep import DIFFERS, Cell, Measured, measured, window
from slurmsched.policies.synergy import OURS

__all__ = ["ratios"]

RATE: Final = 9.0
MECHANISMS: Final = ("proportional", "tune", "opt")
BETTER: Final = "ours: tune"
"""With the reading that measured best: cuts that spare, and spare CPUs handed out again."""

_NEAR: Final = 0.10
_AT_SIX: Final = (
    "At ratio 6 two of the authors' profiles want 24 CPUs per GPU, half a server, for speed-ups that their matrix does"
    " not hold; all or nothing is then often nothing."
)
_SLACK: Final = 0.5


def ratios(task: Task) -> Outcome:
    """Raises ExperimentError, ProfileError."""
    profiles = task.file("synergy", "profiles.json")
    cells = {
        (ratio, mechanism): Cell(mechanism, RATE, task.seeds[0], window(task), profiles, ratio=ratio)
        for ratio in RATIO_GAINS
        for mechanism in MECHANISMS
    }
    cells |= {(ratio, BETTER): replace(cells[ratio, "tune"], reading=OURS) for ratio in RATIO_GAINS}
    figures = measured(list(cells.values()), task, "sweeping")
    found = {name: figures[cell] for name, cell in cells.items()}
    gains = [(ratio, found[ratio, "proportional"].jct / found[ratio, "tune"].jct) for ratio in RATIO_GAINS]
    rows = tuple(_rows(found, dict(gains), quick=task.quick))
    return Outcome("synergy-ratios", rows, {"gain": [(float(ratio), gain) for ratio, gain in gains]})


def _rows(found: Mapping[tuple[int, str], Measured], gains: Mapping[int, float], *, quick: bool) -> Iterator[Row]:
    for ratio, published in RATIO_GAINS.items():
        for mechanism in MECHANISMS:
            jct = found[ratio, mechanism].jct
            yield Row(f"{mechanism} ratio {ratio} mean JCT", "h", jct, bound=Bound.STATED, note=DIFFERS)
        bound = Bound.STATED if quick else Bound.EQUAL
        yield Row(f"gain ratio {ratio}", "x", gains[ratio], published, None, _SLACK, bound, note=DIFFERS)
        yield Row(f"{BETTER} ratio {ratio} mean JCT", "h", found[ratio, BETTER].jct, bound=Bound.STATED)
        opt = found[ratio, "opt"].jct
        theirs, ours = found[ratio, "tune"].jct / opt, found[ratio, BETTER].jct / opt
        yield Row(f"tune over opt ratio {ratio}", "x", theirs, 1.0, bound=Bound.STATED, note=_AT_SIX)
        yield Row(f"{BETTER} over opt ratio {ratio}", "x", ours, 1.0, None, _NEAR, Bound.AT_MOST)
    for lower, higher in pairwise(RATIO_GAINS):
        change = gains[higher] / gains[lower]
        yield Row(f"gain ratio {higher} over ratio {lower}", "x", change, 1.0, None, 0.0, Bound.AT_MOST)
