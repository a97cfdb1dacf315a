"""What an importer gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurmsched.traces.errors import TraceError
from slurmsched.traces.trace import Trace, TraceJob

__all__ = ["Imported", "Sources", "in_order"]


@dataclass(frozen=True, slots=True)
class Imported:
    """The trace, and what was left out of it: why, and how many jobs."""

    trace: Trace
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sources:
    """What a trace refers to without holding it. `seconds` are what an iteration of each model takes at the
    GPU-proportional share."""

    seconds: Mapping[str, float] = field(default_factory=dict)


def in_order(name: str, jobs: Iterable[TraceJob], source: str, *, from_first: bool = False) -> Trace:
    """The jobs as a trace: by arrival, which with `from_first` counts from the first of them.

    Raises TraceError for an id that occurs twice, and for no jobs at all.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival)
    if not ordered:
        raise TraceError(f"{name}: there are no jobs in it that could be run again")
    seen = set[str]()
    for job in ordered:
        if job.id in seen:
            raise TraceError(f"{name}: job_id: expected each once, '{job.id}' is there twice")
        seen.add(job.id)
    if from_first:
        start = ordered[0].arrival
        ordered = [replace(job, arrival=job.arrival - start) for job in ordered]
    return Trace(name, tuple(ordered), source)
