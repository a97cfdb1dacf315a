"""Figures 11, 12, 13, 16, 17 and 18: 900 jobs at 80 an hour on 80 GPUs, six-minute rounds (section 6.3)."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Task
from slurmsched.experiments.tesserae.cells import KNOWN, NOISE, SOME, cells
from slurmsched.experiments.tesserae.knowing import estimates
from slurmsched.experiments.tesserae.rows import Found, held, others, parts
from slurmsched.experiments.tesserae.variants import Cell, measure
from slurmsched.simulation.figures import Figures

__all__ = ["nine_hundred"]

QUICK: Final = 200


def nine_hundred(task: Task) -> Outcome:
    """With `quick` 200 jobs, of which nothing is asked. Raises ExperimentError, ProfileError."""
    base = Cell("", task.file("gavel", "throughputs.json"), QUICK if task.quick else 900)
    found = _replayed(base, task)
    rows = (*held(found, base), *parts(found, base), *others(found, base), *estimates(base.rates, KNOWN))
    if task.quick:
        rows = tuple(replace(row, bound=Bound.STATED) for row in rows)
    ours = replace(base, variant="tesserae-t")
    curves = {
        "mean JCT (h) by noise": [(by, found.jct(replace(ours, noise=by))) for by in NOISE],
        "mean JCT (h) by noise, others completed": [
            (by, found.jct(replace(ours, noise=by, known=SOME))) for by in NOISE
        ],
    }
    return Outcome("tesserae-900", rows, curves)


def _replayed(base: Cell, task: Task) -> Found:
    runs: dict[Cell, list[Figures]] = {cell: [] for cell in cells(base)}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        seeded = [(cell, replace(cell, seed=seed)) for cell in runs for seed in task.seeds]
        running = [(cell, pool.submit(measure, one)) for cell, one in seeded]
        for cell, future in task.tracked(running, "replaying"):
            runs[cell].append(future.result())
    return Found(runs)
