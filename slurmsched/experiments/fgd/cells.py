"""Runs of the experiment: which pods, which policy, which seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from slurmsched.experiments.experiment import Task
from slurmsched.experiments.fgd.filling import Filled, fill
from slurmsched.experiments.fgd.openb import read_servers, read_tasks
from slurmsched.experiments.fgd.policies import placing
from slurmsched.experiments.fgd.sequence import drawn, recorded
from slurmsched.policies.placing.fragmentation import typical

__all__ = ["Cell", "filled"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. With `sequences`, a file, the arrivals are the authors' where it has the seed."""

    policy: str
    seed: int
    pods: Path
    servers: Path
    sequences: Path | None = None


def filled(cells: Sequence[Cell], task: Task, label: str) -> Mapping[Cell, Filled]:
    """Every cell, on all cores. Raises ExperimentError, TraceError."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = [(cell, pool.submit(_fill, cell)) for cell in cells]
        return {cell: future.result() for cell, future in task.tracked(running, label)}


def _fill(cell: Cell) -> Filled:
    tasks, servers = read_tasks(cell.pods), read_servers(cell.servers)
    arrivals = recorded(cell.sequences, cell.seed, tasks, servers) if cell.sequences else None
    return fill(arrivals or drawn(cell.seed, tasks, servers), typical(tasks), placing(cell.policy, cell.seed))
