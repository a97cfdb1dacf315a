"""Runs a sweep as a job array on Slurm, with its results in a folder that all nodes share."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from slurmsched.comparison.sweep import CellResult, FailedCell, Sweep, run_cell
from slurmsched.daemon.clock import Clock
from slurmsched.model import EncodingError, JobId, SynschedError, decode, encode
from slurmsched.simulation import SimulationResult
from slurmsched.template_files import render

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
