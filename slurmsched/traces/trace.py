"""A trace: the jobs of a stretch of time, without a word about who ran where."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Trace", "TraceJob"]


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
