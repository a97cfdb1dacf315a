"""Reads the traces of published systems that are lists in CSV.

- Gavel's generator (Narayanan et al., OSDI 2020): job types, steps and durations on a V100.
- Alibaba's openb (cluster-trace-gpu-v2023; Weng et al., ATC 2023): pods.
- Synergy's simulator (Mohan et al., OSDI 2022): models and their iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from slurmsched.knowledge.published import SYNERGY_MODEL_NAMES, model_name
from slurmsched.model import MILLI_PER_GPU
from slurmsched.traces.tables import TableRow, csv_rows
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError, TraceJob, build_trace

GAVEL_COLUMNS: Final = ("job_id", "job_type", "scale_factor", "total_steps", "arrival_s", "duration_v100_s")


def read_gavel(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the trace, with job types as model names such as `resnet-50-batch-size-64`. Raises TraceError."""
    return ImportedTrace(
        build_trace(name, (_gavel_job(line) for line in csv_rows(text, name, GAVEL_COLUMNS)), f"imported: {name}")
    )


def _gavel_job(line: TableRow) -> TraceJob:
    model = model_name(line.text("job_type"))
    if not model:
        raise line.error("job_type", "a job type")
    return TraceJob(
        id=line.text("job_id"),
        arrival=line.number("arrival_s"),
        gpus=line.integer("scale_factor", 1),
        duration=line.number("duration_v100_s"),
        model=model,
        iterations=line.integer("total_steps", 1),
    )


OPENB_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


def read_openb(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the pods with GPUs as jobs from creation to deletion; without times, all arrive at 0 and run for an hour.

    CPUs are rounded up to whole ones. Raises TraceError.
    """
    skipped = Counter[str]()
    return ImportedTrace(
        build_trace(name, _openb_jobs(text, name, skipped), f"imported: {name}", from_first=True), dict(skipped)
    )


def _openb_jobs(text: str, name: str, skipped: Counter[str]) -> Iterator[TraceJob]:
    for line in csv_rows(text, name, OPENB_COLUMNS):
        if line.integer("num_gpu") == 0:
            skipped["asks for no GPU"] += 1
        else:
            yield _openb_job(line)


def _openb_job(line: TableRow) -> TraceJob:
    gpus, milli = line.integer("num_gpu"), line.integer("gpu_milli", 1)
    if milli > MILLI_PER_GPU:
        raise line.error("gpu_milli", f"at most {MILLI_PER_GPU}")
    created, deleted = line.optional_number("creation_time"), line.optional_number("deletion_time")
    if created is not None and deleted is not None and deleted < created:
        raise line.error("deletion_time", "a time after creation_time")
    part = gpus == 1 and milli < MILLI_PER_GPU
    return TraceJob(
        id=line.text("name"),
        arrival=created or 0.0,
        gpus=0 if part else gpus,
        duration=3600.0 if created is None or deleted is None else deleted - created,
        gpu_type=line.text("gpu_spec").lower(),
        milli_gpu=milli if part else 0,
        gpus_per_node=None if part else gpus,
        cpus=max(1, -(-line.integer("cpu_milli") // MILLI_PER_GPU)),
        memory=line.integer("memory_mib"),
    )


SYNERGY_COLUMNS: Final = ("job_id", "model", "arrival_s", "iterations", "num_gpus")


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
    if not text.lstrip("\ufeff").startswith(SYNERGY_COLUMNS[0]):
        text = ",".join(SYNERGY_COLUMNS) + "\n" + text
    for line in csv_rows(text, name, SYNERGY_COLUMNS):
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
        build_trace(name, (_synergy_job(row, context) for row in synergy_rows(text, name)), f"imported: {name}")
    )


def _synergy_job(row: SynergyRow, context: ImportContext) -> TraceJob:
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
