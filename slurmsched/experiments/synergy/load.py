"""Mean JCT as the load grows (figures 1 and 9, section 5.3.2): 128 GPUs, one-GPU jobs, FIFO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.synergy.reference import LOAD
from slurmsched.experiments.synergy.sweep import DIFFERS, Cell, Measured, measured, window
from slurmsched.policies.synergy import OURS, PAPER

__all__ = ["load"]

MECHANISMS: Final = ("proportional", "greedy", "tune", "opt")
BETTER: Final = "ours: tune"
"""With the reading that measured best: cuts that spare, and spare CPUs handed out again."""

TEXT: Final = "paper: tune"
"""Tune as the text has it. Packing by demand onto the fewest servers costs it some of its gain: the hungriest come
together, and then cut each other."""

FULL: Final = (1.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0)
QUICK: Final = (5.0, 9.0)
_NEAR: Final = 0.10
"""Tune is within so much of Opt in all cases (section 5.3.2)."""

_SLACK: Final = 0.5
"""Means at a load beyond the capacity are held to the published ones within half of them: shape, not digits."""

_SECONDS: Final = 20.0


def load(task: Task) -> Outcome:
    """By the authors' reading, which the published curves come from. Raises ExperimentError, ProfileError."""
    rates, profiles = QUICK if task.quick else FULL, task.file("synergy", "profiles.json")
    cells = {
        (rate, mechanism): Cell(mechanism, rate, task.seeds[0], window(task), profiles)
        for rate in rates
        for mechanism in MECHANISMS
    }
    cells |= {(rate, BETTER): replace(cells[rate, "tune"], reading=OURS) for rate in rates}
    cells |= {(rate, TEXT): replace(cells[rate, "tune"], reading=PAPER) for rate in rates}
    figures = measured(list(cells.values()), task, "sweeping")
    found = {name: figures[cell] for name, cell in cells.items()}
    series = {mechanism: [(rate, found[rate, mechanism].jct) for rate in rates] for mechanism in MECHANISMS}
    return Outcome("synergy-load", tuple(_rows(found, rates, quick=task.quick)), series)


def _rows(found: Mapping[tuple[float, str], Measured], rates: Sequence[float], *, quick: bool) -> Iterator[Row]:
    top = max(rates)
    for rate in rates:
        for mechanism in MECHANISMS:
            published = LOAD.get(mechanism) if rate == top else None
            bound = Bound.EQUAL if published and not quick else Bound.STATED
            jct = found[rate, mechanism].jct
            yield Row(f"{mechanism} {rate:g}/h mean JCT", "h", jct, published, None, _SLACK, bound, note=DIFFERS)
        yield Row(f"{BETTER} {rate:g}/h mean JCT", "h", found[rate, BETTER].jct, bound=Bound.STATED)
        yield Row(f"{TEXT} {rate:g}/h mean JCT", "h", found[rate, TEXT].jct, bound=Bound.STATED)
        tune, opt = found[rate, "tune"].jct, found[rate, "opt"].jct
        yield Row(f"tune over opt {rate:g}/h", "x", tune / opt, 1.0, None, _NEAR, Bound.AT_MOST)
    gain = found[top, "proportional"].jct / found[top, "tune"].jct
    yield Row(f"gain {top:g}/h", "x", gain, LOAD["proportional"] / LOAD["tune"], bound=Bound.STATED, note=DIFFERS)
    worst = max(found[rate, "tune"].cpu_s for rate in rates)
    yield Row("tune slowest run cpu_s", "s", worst, None, _SECONDS, 0.0, Bound.AT_MOST)
