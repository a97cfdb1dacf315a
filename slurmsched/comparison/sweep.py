"""A sweep over policies, loads and seeds as a value, and its execution on the cores of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context

from slurmsched.knowledge import Knowledge
from slurmsched.model import Node, SynschedError
from slurmsched.simulation import PolicyChoice, Scenario, SimulationError, SimulationOptions, SimulationResult
from slurmsched.simulation.engine import simulate
from slurmsched.traces import Trace

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One simulation: a policy over the sweep's trace at index `trace`. `load` is in jobs per hour, None if the trace
    is not scaled."""

    policy: PolicyChoice
    trace: int
    options: SimulationOptions
    load: float | None = None

    @property
    def name(self) -> str:
        """`synergy/srtf at 9/h, seed 1`."""
        at = "" if self.load is None else f" at {self.load:g}/h"
        return f"{self.policy.name}{at}, seed {self.options.seed}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The input of all cells. The first cell's policy is the baseline of the comparison."""

    nodes: tuple[Node, ...]
    knowledge: Knowledge
    traces: tuple[Trace, ...]
    cells: tuple[SweepCell, ...]
    cluster: str = ""
    command: str = ""


def build_sweep(
    nodes: Sequence[Node],
    knowledge: Knowledge,
    policies: Sequence[PolicyChoice],
    trace_of: Callable[[int, float | None], Trace],
    options: SimulationOptions,
    *,
    seeds: Sequence[int] = (1,),
    loads: Sequence[float | None] = (None,),
    cluster: str = "",
    command: str = "",
) -> Sweep:
    """The product of policies, loads and seeds; `trace_of(seed, load)` is called once for all policies."""
    traces: list[Trace] = []
    cells: list[SweepCell] = []
    for load in loads:
        for seed in seeds:
            traces.append(trace_of(seed, load))
            seeded = replace(options, seed=seed)
            cells += (SweepCell(policy, len(traces) - 1, seeded, load) for policy in policies)
    return Sweep(tuple(nodes), knowledge, tuple(traces), tuple(cells), cluster, command)


def scale_load(trace: Trace, load: float | None) -> Trace:
    """The trace with arrivals scaled to `load` jobs per hour; None changes nothing. Raises SimulationError."""
    if load is None:
        return trace
    span = trace.jobs[-1].arrival - trace.jobs[0].arrival
    if not span:
        raise SimulationError(f"{trace.name}: all its jobs arrive at once, so it has no load to change")
    factor = (len(trace.jobs) - 1) / load * HOUR / span
    jobs = tuple(replace(job, arrival=round(job.arrival * factor, 3)) for job in trace.jobs)
    return replace(trace, jobs=jobs, source=f"{trace.source}, at {load:g} jobs/h")


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell without a result, and why."""

    cell: SweepCell
    reason: str


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell and the result of its simulation."""

    cell: SweepCell
    run: SimulationResult


def run_cell(sweep: Sweep, cell: SweepCell) -> SimulationResult:
    """Simulate one cell. Raises SimulationError, PolicyError."""
    scenario = Scenario(sweep.nodes, sweep.traces[cell.trace], sweep.knowledge)
    return replace(simulate(scenario, cell.policy, cell.options), load=cell.load)


def run_locally(
    sweep: Sweep, processes: int | None = None, *, on_result: Callable[[float], None] = lambda _fraction: None
) -> tuple[CellResult | FailedCell, ...]:
    """Run every cell, in `processes` processes (default: one per core); results are in the sweep's order.

    A cell that fails does not affect the others. `on_result` is called with the fraction of cells done.
    """
    results: dict[int, CellResult | FailedCell] = {}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = {
            pool.submit(run_cell, _with_one_trace(sweep, cell), replace(cell, trace=0)): index
            for index, cell in enumerate(sweep.cells)
        }
        try:
            for future, index in _completed(running):
                results[index] = _cell_result(sweep.cells[index], future)
                on_result(len(results) / len(sweep.cells))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(results[index] for index in range(len(sweep.cells)))


def _with_one_trace(sweep: Sweep, cell: SweepCell) -> Sweep:
    """The sweep with only this cell's trace, so that no other is sent to the worker process."""
    return replace(sweep, traces=(sweep.traces[cell.trace],), cells=())


def _completed(running: dict[Future[SimulationResult], int]) -> Iterator[tuple[Future[SimulationResult], int]]:
    return ((future, running[future]) for future in as_completed(running))


def _cell_result(cell: SweepCell, future: Future[SimulationResult]) -> CellResult | FailedCell:
    try:
        return CellResult(cell, future.result())
    except SynschedError as error:
        return FailedCell(cell, str(error))
    except BrokenProcessPool:
        return FailedCell(cell, "its process was killed: too little memory?")
