"""Traces as Synergy's simulator records and replays them: a model and its iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from slurmsched.knowledge.synergy import LONG_NAMES
from slurmsched.traces.errors import TraceError
from slurmsched.traces.imported import Imported, Sources, in_order
from slurmsched.traces.lines import lines
from slurmsched.traces.trace import TraceJob

__all__ = ["COLUMNS", "SynergyRow", "read_synergy", "synergy_rows"]

COLUMNS: Final = ("job_id", "model", "arrival_s", "iterations", "num_gpus")


@dataclass(frozen=True, slots=True)
class SynergyRow:
    """A line: `place` is where it stands, `arrival` in seconds."""

    place: str
    id: int
    model: str
    arrival: float
    iterations: int
    gpus: int


def synergy_rows(text: str, name: str) -> Iterator[SynergyRow]:
    """The lines, with headings or without (as the simulator itself writes them). Raises TraceError."""
    if not text.lstrip("\ufeff").startswith(COLUMNS[0]):
        text = ",".join(COLUMNS) + "\n" + text
    for line in lines(text, name, COLUMNS):
        if not line.text("model"):
            raise line.mistake("model", "the name of a model")
        yield SynergyRow(
            line.place,
            line.whole("job_id"),
            line.text("model"),
            line.number("arrival_s"),
            line.whole("iterations", 1),
            line.whole("num_gpus", 1),
        )


def read_synergy(text: str, name: str, sources: Sources) -> Imported:
    """A job lasts its iterations times what one takes at the GPU-proportional share. Raises TraceError."""
    return Imported(in_order(name, (_job(row, sources) for row in synergy_rows(text, name)), f"imported: {name}"))


def _job(row: SynergyRow, sources: Sources) -> TraceJob:
    seconds = sources.seconds.get(row.model)
    if seconds is None:
        known = f"known are {', '.join(sorted(sources.seconds))}" if sources.seconds else "name a file with --profiles"
        raise TraceError(f"{row.place}: model: how long an iteration of {row.model} takes is not known: {known}")
    return TraceJob(
        id=str(row.id),
        arrival=row.arrival,
        gpus=row.gpus,
        duration=row.iterations * seconds,
        model=LONG_NAMES.get(row.model, row.model),
        iterations=row.iterations,
    )
