"""A trace: the jobs of a period, without where they ran; and the result of importing one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from slurmsched.model import SynschedError

MAX_COPIES: Final = 2000
"""Most copies of a forked job, as many as one dispatch may name."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. Times are in seconds, `arrival` from the trace's start; amounts are for the whole job, memory in MiB.

    `duration` is its uninterrupted run time at the GPU-proportional share of the nodes that it asks for. A job that
    takes a fraction of one GPU has `gpus` 0 and the fraction in `milli_gpu`, 1 to 999. None and "" mean not given.
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
    """The GPU type that it needs; several allowed types are joined by `|`."""
    milli_gpu: int = 0
    gpus_per_node: int | None = None
    cpus: int | None = None
    memory: int | None = None
    time_limit: float | None = None
    iterations: int | None = None
    """The same work in iterations, if the trace has them."""
    fails_after: float | None = None
    """Seconds of work after which the job fails by itself; None for a job that succeeds."""
    fork: int = 0
    """Copies of a forked job (HadarE), each with its `gpus`, that share its work; 0 for a job that is not forked."""
    name: str = ""
    """The name that its owner gave it, which may stand for many jobs."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of arrival, with unique ids. `source` is their origin (`imported: FILE`, `generated: ...`)."""

    name: str
    jobs: tuple[TraceJob, ...]
    source: str = ""

    def with_models(self, names: Mapping[str, str]) -> Trace:
        """Returns the trace with other names for those models that are in `names`."""
        return replace(self, jobs=tuple(replace(job, model=names.get(job.model, job.model)) for job in self.jobs))


class TraceError(SynschedError):
    """An invalid trace or cluster; the message names file, line, field and what was expected."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace, and the number of jobs that were skipped, by reason."""

    trace: Trace
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportContext:
    """Data that a trace refers to: `iteration_seconds` are the seconds of an iteration of each model at the
    GPU-proportional share."""

    iteration_seconds: Mapping[str, float] = field(default_factory=dict)


def build_trace(name: str, jobs: Iterable[TraceJob], source: str, *, from_first: bool = False) -> Trace:
    """Returns the jobs as a trace by arrival, counted from the first one with `from_first`.

    Raises TraceError if an id occurs twice, or if there are no jobs.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival)
    if not ordered:
        raise TraceError(f"{name}: expected at least one job that can be replayed")
    seen = set[str]()
    for job in ordered:
        if job.id in seen:
            raise TraceError(f"{name}: job_id: expected unique ids, but '{job.id}' occurs twice")
        seen.add(job.id)
    if from_first:
        start = ordered[0].arrival
        ordered = [replace(job, arrival=job.arrival - start) for job in ordered]
    return Trace(name, tuple(ordered), source)
