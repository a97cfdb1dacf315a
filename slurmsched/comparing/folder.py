"""A sweep in a folder: what is to be run, and each result as soon as there is one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from slurmsched.comparing.sweep import Sweep
from slurmsched.comparing.sweeping import Lost, Result, run_cell
from slurmsched.model import EncodingError, SynschedError, decode, encode
from slurmsched.simulation import Run

__all__ = ["Folder", "FolderError"]

T = TypeVar("T")
_SWEEP = "sweep.json"


class FolderError(SynschedError):
    """A folder that holds no sweep, or cannot be written; the message names the file."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Folder:
    """On a file system that all nodes share. Results are written whole or not at all."""

    path: Path

    def create(self, sweep: Sweep) -> None:
        """Raises FolderError where there is a sweep already."""
        if (self.path / _SWEEP).exists():
            raise FolderError(f"{self.path} holds a sweep: take it up with --resume, or name another folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(f"cannot make {self.path}: {error.strerror}") from error
        self._write(_SWEEP, encode(sweep))

    def sweep(self) -> Sweep:
        """Raises FolderError."""
        return decode_file(Sweep, self.path / _SWEEP)

    def missing(self, sweep: Sweep) -> tuple[int, ...]:
        """Places of the cells that have no result yet."""
        return tuple(place for place in range(len(sweep.cells)) if not self._result(place).exists())

    def run(self, place: int) -> None:
        """Run one cell and leave its result. Raises FolderError, SimulationError."""
        sweep = self.sweep()
        if not 0 <= place < len(sweep.cells):
            raise FolderError(f"{self.path} has cells 0 to {len(sweep.cells) - 1}, not {place}")
        self._write(self._result(place).name, encode(run_cell(sweep, sweep.cells[place])))

    def results(self, sweep: Sweep) -> tuple[Result | Lost, ...]:
        """What there is, in the sweep's order; what is missing or spoilt is named."""
        return tuple(self._read(sweep, place) for place in range(len(sweep.cells)))

    def _read(self, sweep: Sweep, place: int) -> Result | Lost:
        cell = sweep.cells[place]
        if not self._result(place).exists():
            return Lost(cell, f"no {self._result(place).name}: its task did not end well")
        try:
            return Result(cell, decode_file(Run, self._result(place)))
        except FolderError as error:
            return Lost(cell, str(error))

    def _result(self, place: int) -> Path:
        return self.path / f"cell-{place}.json"

    def _write(self, name: str, text: str) -> None:
        part = self.path / f".{name}.{os.getpid()}"
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self.path / name)
        except OSError as error:
            raise FolderError(f"cannot write {self.path / name}: {error.strerror}") from error


def decode_file(form: type[T], path: Path) -> T:
    """Raises FolderError."""
    try:
        return decode(form, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    except (EncodingError, UnicodeDecodeError) as error:
        raise FolderError(f"{path} is no result of ours: {error}") from error
