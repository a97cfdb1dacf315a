"""Load sweeps on 128 GPUs (section 5.3): a queue of made-up jobs, of which a steady-state window is measured while
later ones keep the load up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Task
from slurmsched.experiments.synergy.jobs import Replay, Work
from slurmsched.experiments.synergy.models import load_models
from slurmsched.experiments.synergy.replay import run_replay
from slurmsched.policies.synergy import AUTHORS, Reading
from slurmsched.traces.generating import Split, synergy

__all__ = ["DIFFERS", "Cell", "Measured", "Window", "measured", "window"]

DIFFERS: Final = (
    "Inputs differ: the paper samples widths and models from the Philly trace, which is not at hand; ours are drawn"
    " from the distributions its text gives (durations 10^x minutes, Poisson arrivals, the split). An overloaded queue"
    " grows as long as it is fed, so means beyond the capacity depend on the window."
)

SERVERS: Final = 16
GPUS: Final = 8
MEMORY: Final = 500.0
PERIOD: Final = 300.0

Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: `rate` in jobs per hour, `ratio` in CPUs per GPU."""

    mechanism: str
    rate: float
    seed: int
    window: Window
    profiles: Path
    split: Split = (20, 70, 10)
    ratio: int = 3
    multi: bool = False
    order: str = "fifo"
    reading: Reading = AUTHORS


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean JCT of the window in hours, and the CPU seconds of the run."""

    jct: float
    cpu_s: float


def window(task: Task) -> Window:
    """The paper's own thousand jobs; with `quick` an earlier, smaller one."""
    return (500, 1000) if task.quick else (4000, 5000)


def measured(cells: Sequence[Cell], task: Task, label: str) -> Mapping[Cell, Measured]:
    """Every cell, on all cores."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        # The slowest first, so that no core is left with them at the end.
        ordered = sorted(cells, key=lambda cell: (cell.mechanism != "opt", -cell.rate))
        running = [(cell, pool.submit(_measure, cell)) for cell in ordered]
        return {cell: future.result() for cell, future in task.tracked(running, label)}


def _measure(cell: Cell) -> Measured:
    run = run_replay(_queue(cell), cell.mechanism, cell.order, cell.reading, period=PERIOD, window=cell.window)
    return Measured(float(np.mean([job.jct for job in run.measured])) / 3600, run.cpu_s)


def _queue(cell: Cell) -> Replay:
    """Half as many jobs again as are measured: those behind the window keep its last jobs company."""
    models = load_models(cell.profiles, cell.ratio)
    first, beyond = cell.window
    trace = synergy(beyond + (beyond - first) + 500, cell.seed, cell.rate, cell.split, multi=cell.multi)
    jobs = [
        Work(number, job.arrival, max(1, int(job.duration / models[job.model].seconds)), job.gpus, models[job.model])
        for number, job in enumerate(trace.jobs)
    ]
    return Replay(jobs, SERVERS, GPUS, cell.ratio * GPUS, MEMORY)
