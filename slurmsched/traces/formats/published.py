"""Reads the traces of published systems in the form in which they were published.

- Gavel's generator (Narayanan et al., OSDI 2020): job types, steps and durations on a V100.
- Alibaba's openb (cluster-trace-gpu-v2023; Weng et al., ATC 2023): pods.
- Philly (Jeon et al., ATC 2019): jobs with the GPUs of their attempts, in JSON.
- Synergy's simulator (Mohan et al., OSDI 2022): models and their iterations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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


_TIME = "%Y-%m-%d %H:%M:%S"


def read_philly(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the jobs that ran and are over. A job has the GPUs of its last attempt and the duration of all attempts.

    Raises TraceError.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{name}: expected JSON: {error}") from error
    if not isinstance(data, list):
        raise TraceError(f"{name}: expected a list of jobs")
    skipped = Counter[str]()
    return ImportedTrace(
        build_trace(name, _jobs(data, name, skipped), f"imported: {name}", from_first=True), dict(skipped)
    )


def _jobs(data: list[object], name: str, skipped: Counter[str]) -> Iterator[TraceJob]:
    for number, entry in enumerate(data, start=1):
        location = f"{name}: job {number}"
        if not isinstance(entry, dict):
            raise TraceError(f"{location}: expected a table")
        attempts = entry.get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
            raise TraceError(f"{location}: attempts: expected a list of tables")
        ran = [
            (start, end, attempt)
            for attempt in attempts
            if (start := _time(attempt, "start_time", location)) and (end := _time(attempt, "end_time", location))
        ]
        gpus = _gpus(ran[-1][2], location) if ran else 0
        submitted = _time(entry, "submitted_time", location)
        if not ran or submitted is None:
            skipped["never ran, or still runs"] += 1
        elif not gpus:
            skipped["asks for no GPU"] += 1
        else:
            yield TraceJob(
                id=str(entry.get("jobid", number)),
                arrival=submitted,
                gpus=gpus,
                duration=sum(max(0.0, end - start) for start, end, _ in ran),
                user=str(entry.get("user") or ""),
                account=str(entry.get("vc") or ""),
            )


def _gpus(attempt: Mapping[str, object], location: str) -> int:
    detail = attempt.get("detail")
    if not isinstance(detail, list) or not all(isinstance(host, dict) for host in detail):
        raise TraceError(f"{location}: detail: expected a list of tables")
    return sum(len(gpus) for host in detail if isinstance(gpus := host.get("gpus"), list))


def _time(table: Mapping[str, object], key: str, location: str) -> float | None:
    """Returns unix seconds, with the trace's local time read as UTC; None if the field is empty."""
    text = table.get(key)
    if text is None or text in ("", "None"):
        return None
    try:
        return datetime.strptime(str(text), _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TraceError(f"{location}: {key}: expected a time such as 2017-10-03 01:27:23, not '{text}'") from None
