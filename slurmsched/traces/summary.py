"""Summary statistics of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from slurmsched.traces.trace import Trace

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Statistics of a trace. Times are in hours; `busy_gpus` are the GPU-hours that arrive per hour."""

    name: str
    source: str
    jobs: int
    gpu_hours: float
    span_h: float
    busy_gpus: float
    duration_h: Mapping[str, float]
    widths: Mapping[str, int]
    models: Mapping[str, int]
    users: Mapping[str, int]
    types: Mapping[str, int]
    copies: Mapping[str, int]
    """Forked jobs by their number of copies."""


def summarise_trace(trace: Trace, limit: int = 10) -> TraceSummary:
    """Returns the statistics of the trace, with the `limit` most frequent models, users and GPU types."""
    gpus = np.array([job.gpus + job.milli_gpu / 1000 for job in trace.jobs])
    durations = np.array([job.duration for job in trace.jobs]) / HOUR
    arrivals = np.array([job.arrival for job in trace.jobs]) / HOUR
    span, work = float(np.ptp(arrivals)), float(np.sum(gpus * durations))
    points = {"min": 0, "median": 50, "p90": 90, "p99": 99, "max": 100}
    return TraceSummary(
        name=trace.name,
        source=trace.source,
        jobs=len(trace.jobs),
        gpu_hours=work,
        span_h=span,
        busy_gpus=work / span if span else float("inf"),
        duration_h={name: float(np.percentile(durations, point)) for name, point in points.items()},
        widths={str(width): count for width, count in sorted(Counter(job.gpus for job in trace.jobs).items())},
        models=_most_frequent((job.model for job in trace.jobs), limit),
        users=_most_frequent((job.user for job in trace.jobs), limit),
        types=_most_frequent((job.gpu_type for job in trace.jobs), limit),
        copies={str(fork): count for fork, count in sorted(Counter(job.fork for job in trace.jobs).items()) if fork},
    )


def _most_frequent(names: Iterable[str], limit: int) -> Mapping[str, int]:
    return dict(Counter(filter(None, names)).most_common(limit))
