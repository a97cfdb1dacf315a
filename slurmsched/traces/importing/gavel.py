"""Traces of Gavel's generator (Narayanan et al., OSDI 2020): a job type, its steps, and its duration on a V100."""

from __future__ import annotations

from typing import Final

from slurmsched.knowledge.gavel import model_name
from slurmsched.traces.imported import Imported, Sources, in_order
from slurmsched.traces.lines import Line, lines
from slurmsched.traces.trace import TraceJob

__all__ = ["COLUMNS", "read_gavel"]

COLUMNS: Final = ("job_id", "job_type", "scale_factor", "total_steps", "arrival_s", "duration_v100_s")


def read_gavel(text: str, name: str, _sources: Sources) -> Imported:
    """The model is the job type in our letters: `resnet-50.batch-size-64`. Raises TraceError."""
    return Imported(in_order(name, (_job(line) for line in lines(text, name, COLUMNS)), f"imported: {name}"))


def _job(line: Line) -> TraceJob:
    model = model_name(line.text("job_type"))
    if not model:
        raise line.mistake("job_type", "a job type")
    return TraceJob(
        id=line.text("job_id"),
        arrival=line.number("arrival_s"),
        gpus=line.whole("scale_factor", 1),
        duration=line.number("duration_v100_s"),
        model=model,
        iterations=line.whole("total_steps", 1),
    )
