"""The rows of all published figures, kept by part, so that runs of hours can be done one at a time.

A part is one run of an experiment. Its rows are a JSON file in a folder, which a later run replaces, but a quick run
never those of a whole one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cattrs import BaseValidationError, Converter

from slurmsched.experiments.experiment import ExperimentError, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.registry import EXPERIMENTS, run_experiment
from slurmsched.jobside.atomic_files import write_atomically
from slurmsched.model import to_plain


@dataclass(frozen=True, slots=True)
class FigurePart:
    """One run of an experiment, by its options."""

    experiment: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The experiment and the values of its options, as in `fgd-variant gpushare100`."""
        return " ".join((self.experiment, *self.options.values()))

    @property
    def system(self) -> str:
        """The system whose paper has the figures."""
        return EXPERIMENTS[self.experiment].system

    def path(self, folder: Path) -> Path:
        """Returns the file of the part's rows."""
        return folder / f"{self.name.replace(' ', '-')}.json"


def figure_parts() -> tuple[FigurePart, ...]:
    """Returns the parts of all experiments, in the order of their table."""
    return tuple(FigurePart(name, options) for name, entry in EXPERIMENTS.items() for options in entry.parts)


@dataclass(frozen=True, slots=True)
class KeptFigures:
    """The rows of a part, the seeds and version that they were measured with, and the day, as in 2026-11-22."""

    part: FigurePart
    seeds: tuple[int, ...]
    quick: bool
    day: str
    rows: tuple[FigureRow, ...]

    @property
    def result(self) -> ExperimentResult:
        return ExperimentResult(self.part.name, self.rows)

    @property
    def command(self) -> str:
        """The command that measures the rows again."""
        options = "".join(f" --{name} {value}" for name, value in self.part.options.items())
        seeds = f" --seeds {','.join(map(str, self.seeds))}" if EXPERIMENTS[self.part.experiment].draws else ""
        return f"synsched reproduce {self.part.experiment}{options}{seeds}{' --quick' if self.quick else ''}"


_CONVERTER: Final = Converter()
"""One for all files: what it learns of the classes takes longer than to read the rows."""


def read_kept(part: FigurePart, folder: Path) -> KeptFigures | None:
    """Returns the part's rows, or None if it has none yet. Raises ExperimentError."""
    path = part.path(folder)
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = [{**row, "note": data["notes"][row["note"]]} for row in data["rows"]]
        return _CONVERTER.structure({**data, "rows": rows}, KeptFigures)
    except (OSError, ValueError, LookupError, TypeError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected the rows of {part.name}: {error!r}; remove the file") from error


def kept_figures(folder: Path) -> tuple[KeptFigures, ...]:
    """Returns the rows of all parts that the folder has, in order. Raises ExperimentError."""
    found = (read_kept(part, folder) for part in figure_parts())
    return tuple(kept for kept in found if kept is not None)


def check_replaceable(part: FigurePart, folder: Path, *, quick: bool) -> None:
    """Raises ExperimentError if the folder has the part's rows of a whole run while the new ones are of a quick one."""
    earlier = read_kept(part, folder)
    if quick and earlier is not None and not earlier.quick:
        kept = part.path(folder)
        raise ExperimentError(f"{kept} has the rows of a whole run, which those of a quick one do not replace")


def keep(kept: KeptFigures, folder: Path) -> None:
    """Writes the part's rows. Raises ExperimentError as `check_replaceable`, or if the folder cannot be written."""
    check_replaceable(kept.part, folder, quick=kept.quick)
    path = kept.part.path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _as_json(kept).encode())
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error


def _as_json(kept: KeptFigures) -> str:
    """Returns the rows as JSON, a line each. Rows refer to `notes`, because many share a long one."""
    notes = list(dict.fromkeys(row.note for row in kept.rows))
    data = to_plain(replace(kept, rows=())) | {"notes": notes}
    del data["rows"]
    rows = [json.dumps({**to_plain(row), "note": notes.index(row.note)}) for row in kept.rows]
    head = json.dumps(data, indent=1).removesuffix("\n}")
    return f'{head},\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def measure(part: FigurePart, setup: ExperimentSetup, day: str) -> KeptFigures:
    """Runs the part's experiment. Raises ExperimentError and what the experiment raises."""
    setup = replace(setup, options=part.options)
    return KeptFigures(part, setup.seeds, setup.quick, day, run_experiment(part.experiment, setup).rows)


def measure_missing(folder: Path, setup: ExperimentSetup, day: str) -> Iterator[KeptFigures]:
    """Yields every part in order, measured and kept now unless the folder has its rows of a run like this."""
    for part in figure_parts():
        kept = read_kept(part, folder)
        if kept is None or not _serves(kept, setup):
            kept = measure(part, setup, day)
            keep(kept, folder)
        yield kept


def _serves(kept: KeptFigures, setup: ExperimentSetup) -> bool:
    """Whether the rows are of as many jobs and of these seeds; for a quick run those of any whole one will do."""
    if setup.quick and not kept.quick:
        return True
    same_draws = kept.seeds == setup.seeds or not EXPERIMENTS[kept.part.experiment].draws
    return kept.quick == setup.quick and same_draws
