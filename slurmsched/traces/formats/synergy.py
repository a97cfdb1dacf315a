"""Reads traces of Synergy's simulator (Mohan et al., OSDI 2022): models and their iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from slurmsched.knowledge.published import SYNERGY_MODEL_NAMES
from slurmsched.traces.tables import csv_rows
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError, TraceJob, build_trace

COLUMNS: Final = ("job_id", "model", "arrival_s", "iterations", "num_gpus")


@dataclass(frozen=True, slots=True)
class SynergyRow:
    """One row: `location` is FILE:LINE, `arrival` is in seconds."""

    location: str
    id: int
    model: str
    arrival: float
    iterations: int
    gpus: int


def synergy_rows(text: str, name: str) -> Iterator[SynergyRow]:
    """Yields the rows, with or without headings (the simulator writes none). Raises TraceError."""
    if not text.lstrip("\ufeff").startswith(COLUMNS[0]):
        text = ",".join(COLUMNS) + "\n" + text
    for line in csv_rows(text, name, COLUMNS):
        if not line.text("model"):
            raise line.error("model", "the name of a model")
        yield SynergyRow(
            line.location,
            line.integer("job_id"),
            line.text("model"),
            line.number("arrival_s"),
            line.integer("iterations", 1),
            line.integer("num_gpus", 1),
        )


def read_synergy(text: str, name: str, context: ImportContext) -> ImportedTrace:
    """Returns the trace: a duration is the iterations times their seconds in `context`. Raises TraceError."""
    return ImportedTrace(
        build_trace(name, (_job(row, context) for row in synergy_rows(text, name)), f"imported: {name}")
    )


def _job(row: SynergyRow, context: ImportContext) -> TraceJob:
    seconds = context.iteration_seconds.get(row.model)
    if seconds is None:
        known = (
            f"known are {', '.join(sorted(context.iteration_seconds))}"
            if context.iteration_seconds
            else "name a file with --profiles"
        )
        raise TraceError(f"{row.location}: model: the seconds of an iteration of {row.model} are not known: {known}")
    return TraceJob(
        id=str(row.id),
        arrival=row.arrival,
        gpus=row.gpus,
        duration=row.iterations * seconds,
        model=SYNERGY_MODEL_NAMES.get(row.model, row.model),
        iterations=row.iterations,
    )
