"""A sweep over policies, loads and seeds, on all cores of this machine or as a job array on Slurm."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from slurmsched.daemon.clock import Clock
from slurmsched.knowledge import Knowledge
from slurmsched.model import EncodingError, JobId, Node, SynschedError, decode, encode
from slurmsched.simulation import PolicyChoice, Scenario, SimulationError, SimulationOptions, SimulationResult
from slurmsched.simulation.engine import simulate
from slurmsched.template_files import render
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
    left_out: tuple[str, ...] = ()
    """How many jobs of the traces are left out, by reason."""


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
    left_out: Sequence[str] = (),
) -> Sweep:
    """The product of policies, loads and seeds; `trace_of(seed, load)` is called once for all policies."""
    traces: list[Trace] = []
    cells: list[SweepCell] = []
    for load in loads:
        for seed in seeds:
            traces.append(trace_of(seed, load))
            seeded = replace(options, seed=seed)
            cells += (SweepCell(policy, len(traces) - 1, seeded, load) for policy in policies)
    return Sweep(tuple(nodes), knowledge, tuple(traces), tuple(cells), cluster, command, tuple(left_out))


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


T = TypeVar("T")
_SWEEP = "sweep.json"


class SweepFolderError(SynschedError):
    """The folder holds no sweep or cannot be read or written; the message names the file."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The folder of a sweep, on a file system that all nodes share. Files are written atomically."""

    path: Path

    def create(self, sweep: Sweep) -> None:
        """Create the folder and write the sweep. Raises SweepFolderError if it holds a sweep already."""
        if (self.path / _SWEEP).exists():
            raise SweepFolderError(f"{self.path} holds a sweep: continue it with --resume, or name another folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepFolderError(f"cannot create {self.path}: {error.strerror}") from error
        self._write(_SWEEP, encode(sweep))

    def read_sweep(self) -> Sweep:
        """The sweep that `create` wrote. Raises SweepFolderError."""
        return decode_file(Sweep, self.path / _SWEEP)

    def missing_cells(self, sweep: Sweep) -> tuple[int, ...]:
        """The indices of the cells without a result."""
        return tuple(index for index in range(len(sweep.cells)) if not self._result_path(index).exists())

    def run_cell_at(self, index: int) -> None:
        """Run one cell and write its result. Raises SweepFolderError, SimulationError, PolicyError."""
        sweep = self.read_sweep()
        if not 0 <= index < len(sweep.cells):
            raise SweepFolderError(f"{self.path} has cells 0 to {len(sweep.cells) - 1}, not {index}")
        self._write(self._result_path(index).name, encode(run_cell(sweep, sweep.cells[index])))

    def results(self, sweep: Sweep) -> tuple[CellResult | FailedCell, ...]:
        """The results in the sweep's order; missing or unreadable ones as FailedCell."""
        return tuple(self._read(sweep, index) for index in range(len(sweep.cells)))

    def _read(self, sweep: Sweep, index: int) -> CellResult | FailedCell:
        cell = sweep.cells[index]
        if not self._result_path(index).exists():
            return FailedCell(cell, f"no {self._result_path(index).name}: its array task failed or did not run")
        try:
            return CellResult(cell, decode_file(SimulationResult, self._result_path(index)))
        except SweepFolderError as error:
            return FailedCell(cell, str(error))

    def _result_path(self, index: int) -> Path:
        return self.path / f"cell-{index}.json"

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path / name)
        except OSError as error:
            raise SweepFolderError(f"cannot write {self.path / name}: {error.strerror}") from error


def decode_file(cls: type[T], path: Path) -> T:
    """The value that is stored in the file. Raises SweepFolderError."""
    try:
        return decode(cls, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SweepFolderError(f"cannot read {path}: {error.strerror}") from error
    except (EncodingError, UnicodeDecodeError) as error:
        raise SweepFolderError(f"{path} is not a result of synsched: {error}") from error


_POLL_INTERVAL: Final = 5.0


@dataclass(frozen=True, slots=True)
class ArrayOptions:
    """sbatch options of the job array: partition, time limit of a task, and how many tasks run at once (0: all)."""

    partition: str = ""
    limit: str = "4:00:00"
    at_once: int = 0

    def options(self, folder: SweepFolder, tasks: Sequence[int]) -> tuple[str, ...]:
        """The options of sbatch for these tasks."""
        throttle = f"%{self.at_once}" if self.at_once else ""
        return (
            "--job-name=synsched-compare",
            f"--array={','.join(map(str, tasks))}{throttle}",
            "--cpus-per-task=1",
            f"--time={self.limit}",
            f"--chdir={folder.path}",
            f"--output={folder.path}/cell-%a.log",
            *([f"--partition={self.partition}"] if self.partition else []),
        )


def submit_array(folder: SweepFolder, sweep: Sweep, array: ArrayOptions, slurm_conf: str = "") -> JobId | None:
    """Submit one task per cell without a result; returns the job id, None if all have one. Raises BackendError,
    SweepFolderError.
    """
    tasks = folder.missing_cells(sweep)
    if not tasks:
        return None
    script = render("compare-array.sh", command=shlex.join((sys.executable, "-m", "slurmsched")), folder=folder.path)
    return submission.submit(array.options(folder, tasks), script, slurm_conf)


def wait_for_array(
    job: JobId, commands: Commands, clock: Clock, *, on_poll: Callable[[], None], every: float = _POLL_INTERVAL
) -> None:
    """Wait until no task of the array is in the queue, with one squeue per poll. Raises BackendError."""
    while job in commands.read("squeue", "--noheader", "--me", "--format=%F").split():
        on_poll()
        clock.sleep(every)
