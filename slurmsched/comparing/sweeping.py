"""Cells run on this machine, on all of its cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context

from slurmsched.comparing.sweep import Cell, Sweep
from slurmsched.model import SynschedError
from slurmsched.simulation import Run, World
from slurmsched.simulation.engine import simulate

__all__ = ["Lost", "Result", "run_cell", "run_here"]


@dataclass(frozen=True, slots=True)
class Lost:
    """A cell that has no result, and why."""

    cell: Cell
    why: str


@dataclass(frozen=True, slots=True)
class Result:
    """A cell and its run."""

    cell: Cell
    run: Run


def run_cell(sweep: Sweep, cell: Cell) -> Run:
    """Raises SimulationError, PolicyError."""
    world = World(sweep.nodes, sweep.traces[cell.trace], sweep.knowledge)
    return replace(simulate(world, cell.policy, cell.options), load=cell.load)


def run_here(
    sweep: Sweep, processes: int | None = None, *, on_result: Callable[[float], None] = lambda _part: None
) -> tuple[Result | Lost, ...]:
    """Every cell, in the sweep's order; one that fails takes no other with it. `on_result` is told the part done."""
    found: dict[int, Result | Lost] = {}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = {
            pool.submit(run_cell, _alone(sweep, cell), replace(cell, trace=0)): i for i, cell in enumerate(sweep.cells)
        }
        try:
            for future, place in _ended(running):
                found[place] = _result(sweep.cells[place], future)
                on_result(len(found) / len(sweep.cells))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(found[place] for place in range(len(sweep.cells)))


def _alone(sweep: Sweep, cell: Cell) -> Sweep:
    """The sweep with this cell's trace only: the others need not travel."""
    return replace(sweep, traces=(sweep.traces[cell.trace],), cells=())


def _ended(running: dict[Future[Run], int]) -> Iterator[tuple[Future[Run], int]]:
    return ((future, running[future]) for future in as_completed(running))


def _result(cell: Cell, future: Future[Run]) -> Result | Lost:
    try:
        return Result(cell, future.result())
    except SynschedError as error:
        return Lost(cell, str(error))
    except BrokenProcessPool:
        return Lost(cell, "its process was killed: too little memory?")
