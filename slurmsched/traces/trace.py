"""A trace: the jobs of a stretch of time, without a word about who ran where; and what an importer gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurmsched.model import SynschedError


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. Times in seconds, `arrival` from the trace's start; amounts are for the whole job, memory in MiB.

    `duration` is how long it runs, undisturbed, at the GPU-proportional share of the nodes it asks for. A job that
    takes part of one GPU has `gpus` 0 and its part, 1 to 999, in `milli_gpu`. None and "" mean that nothing was said.
    """

    id: str
    arrival: float
    gpus: int
    duration: float
    model: str = ""
    task: str = ""
    user: str = ""
    account: str = ""
    gpu_type: str = ""
    """The only type it runs on; several types are joined by `|`."""
    milli_gpu: int = 0
    gpus_per_node: int | None = None
    cpus: int | None = None
    memory: int | None = None
    time_limit: float | None = None
    iterations: int | None = None
    """The same work counted in iterations, where the trace did."""
    fails_after: float | None = None
    """Seconds of work after which it fails of its own accord; None for a job that ends well."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of arrival, ids unique. `source` says where they come from (`imported: FILE`, `generated: ...`)."""

    name: str
    jobs: tuple[TraceJob, ...]
    source: str = ""


class TraceError(SynschedError):
    """A trace or cluster that cannot be used; the message names file, line, field and what was expected."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """The trace, and what was left out of it: why, and how many jobs."""

    trace: Trace
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportContext:
    """What a trace refers to without holding it. `seconds` are what an iteration of each model takes at the
    GPU-proportional share."""

    iteration_seconds: Mapping[str, float] = field(default_factory=dict)


def build_trace(name: str, jobs: Iterable[TraceJob], source: str, *, from_first: bool = False) -> Trace:
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
