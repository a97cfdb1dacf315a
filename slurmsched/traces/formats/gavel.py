"""Reads traces of Gavel's generator (Narayanan et al., OSDI 2020): job types, steps and durations on a V100."""

from __future__ import annotations

from typing import Final

from slurmsched.knowledge.published import model_name
from slurmsched.traces.tables import TableRow, csv_rows
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceJob, build_trace

COLUMNS: Final = ("job_id", "job_type", "scale_factor", "total_steps", "arrival_s", "duration_v100_s")


def read_gavel(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the trace, with job types as model names such as `resnet-50-batch-size-64`. Raises TraceError."""
    return ImportedTrace(build_trace(name, (_job(line) for line in csv_rows(text, name, COLUMNS)), f"imported: {name}"))


def _job(line: TableRow) -> TraceJob:
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
