"""Reads and writes our trace format: CSV with a column for each field of a job (docs/simulating.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final

from slurmsched.traces.tables import TableRow, csv_rows
from slurmsched.traces.trace import MAX_COPIES, ImportContext, ImportedTrace, Trace, TraceJob, build_trace

REQUIRED_COLUMNS: Final = ("job_id", "arrival_s", "gpus", "duration_s")
COLUMNS: Final = (
    *REQUIRED_COLUMNS,
    "model",
    "task",
    "user",
    "account",
    "gpu_type",
    "milli_gpu",
    "gpus_per_node",
    "cpus",
    "memory_mib",
    "time_limit_s",
    "iterations",
    "fails_after_s",
    "fork",
)


def read_native(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the trace of a CSV text. Raises TraceError."""
    jobs = (_job(line) for line in csv_rows(text, name, REQUIRED_COLUMNS))
    return ImportedTrace(build_trace(name, jobs, f"imported: {name}"))


def _job(line: TableRow) -> TraceJob:
    if not line.text("job_id"):
        raise line.error("job_id", "a name")
    gpus, milli = line.integer("gpus"), line.optional_integer("milli_gpu") or 0
    if milli > 999:  # noqa: PLR2004  # a whole GPU is gpus 1
        raise line.error("milli_gpu", "a fraction of one GPU, 0 to 999")
    if gpus and milli:
        raise line.error("milli_gpu", "no fraction in addition to whole GPUs")
    fork = line.optional_integer("fork") or 0
    if fork > MAX_COPIES:
        raise line.error("fork", f"a number of copies, 0 to {MAX_COPIES}")
    if fork > 1 and not gpus:
        raise line.error("fork", "no copies of a job without whole GPUs")
    return TraceJob(
        id=line.text("job_id"),
        arrival=line.number("arrival_s"),
        gpus=gpus,
        duration=line.number("duration_s"),
        model=line.text("model"),
        task=line.text("task"),
        user=line.text("user"),
        account=line.text("account"),
        gpu_type=line.text("gpu_type"),
        milli_gpu=milli,
        gpus_per_node=line.optional_integer("gpus_per_node", 1),
        cpus=line.optional_integer("cpus", 1),
        memory=line.optional_integer("memory_mib"),
        time_limit=line.optional_number("time_limit_s"),
        iterations=line.optional_integer("iterations"),
        fails_after=line.optional_number("fails_after_s"),
        fork=fork if fork > 1 else 0,
    )


def to_csv(trace: Trace) -> str:
    """Returns the trace as CSV that reads back to the same jobs, without unused columns."""
    rows = [dict(zip(COLUMNS, _fields(job), strict=True)) for job in trace.jobs]
    used = [column for column in COLUMNS if column in REQUIRED_COLUMNS or any(row[column] for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, used, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _fields(job: TraceJob) -> Iterator[str]:
    values: tuple[object, ...] = (
        job.id,
        job.arrival,
        job.gpus,
        job.duration,
        job.model,
        job.task,
        job.user,
        job.account,
        job.gpu_type,
        job.milli_gpu or None,
        job.gpus_per_node,
        job.cpus,
        job.memory,
        job.time_limit,
        job.iterations,
        job.fails_after,
        job.fork or None,
    )
    return ("" if value is None else repr(value) if isinstance(value, float) else str(value) for value in values)
