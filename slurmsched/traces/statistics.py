"""Statistics of a trace: how jobs arrive, the GPUs that they ask for over time, and who asks for how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.model import MILLI_PER_GPU
from slurmsched.traces.clusters import ClusterSpec
from slurmsched.traces.trace import ImportedTrace, TraceJob

_HOUR: Final = 3600.0
_DAY: Final = 24.0
_MAX_STEPS: Final = 60
_STEPS_H: Final = (1 / 60, 1 / 12, 1 / 6, 0.5, 1, 2, 3, 6, 12, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY)
"""Hours of a step of the curves: the first is taken of which 60 cover the trace."""
_WIDTHS: Final = (("1", 1.0), ("2", 2.0), ("3-4", 4.0), ("5-8", 8.0), ("9-16", 16.0), ("17-32", 32.0), ("33-64", 64.0))
_LENGTHS: Final = (
    *(("1 min", 60.0), ("10 min", 600.0), ("1 h", _HOUR), ("6 h", 6 * _HOUR), ("1 d", 24 * _HOUR)),
    ("7 d", 168 * _HOUR),
)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that have something in common, such as a number of GPUs or a user, and the GPU-hours of their work."""

    name: str
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class ArrivalCurves:
    """Curves from the first arrival to the last, in steps of `step_h` hours: the `jobs` that arrive in each step, and
    the mean number of `gpus` that would be in use in it if each job started when it arrives."""

    step_h: float
    jobs: tuple[int, ...] = ()
    gpus: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """What a trace is for a cluster of `gpus` GPUs. `load` is the work that arrives over the work that the GPUs can do
    in the same time, `over` the part of that time in which more GPUs are asked for than there are. `too_wide` jobs ask
    for more than all GPUs of their types. The work takes `least_h` hours at least."""

    name: str
    gpus: int
    load: float
    over: float
    too_wide: int
    least_h: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Statistics of a trace. Times are in hours; `busy_gpus` are the GPU-hours that arrive per hour, `peak_gpus` the
    most GPUs in use at once if each job started when it arrives."""

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
    peak_gpus: float
    user_count: int
    curves: ArrivalCurves
    by_gpus: tuple[JobGroup, ...]
    by_duration: tuple[JobGroup, ...]
    by_user: tuple[JobGroup, ...]
    """The users with the most GPU-hours; accounts where no job has a user."""
    skipped: Mapping[str, int]
    """Jobs that were left out, by reason."""
    cluster: ClusterLoad | None = None
    """None if no cluster was named."""


def summarise_trace(imported: ImportedTrace, cluster: ClusterSpec | None = None, limit: int = 10) -> TraceSummary:
    """Returns the statistics of the trace, with the `limit` most frequent models, users and GPU types."""
    trace = imported.trace
    jobs = trace.jobs
    gpus = np.array([job.gpus + job.milli_gpu / MILLI_PER_GPU for job in jobs])
    durations = np.array([job.duration for job in jobs]) / _HOUR
    arrivals = np.array([job.arrival for job in jobs]) / _HOUR
    work = gpus * durations
    span = float(np.ptp(arrivals))
    use = _GpuUse.of(arrivals - arrivals.min(), durations, gpus)
    points = {"min": 0, "median": 50, "p90": 90, "p99": 99, "max": 100}
    owners = [job.user for job in jobs] if any(job.user for job in jobs) else [job.account for job in jobs]

    def grouped(name: Callable[[int], str]) -> list[JobGroup]:
        return _grouped(map(name, range(len(jobs))), work)

    def of_class(value: float, classes: Iterable[tuple[str, float]], above: str) -> str:
        return next((name for name, most in classes if value <= most), above)

    by_gpus = grouped(lambda index: "part of 1" if gpus[index] < 1 else of_class(gpus[index], _WIDTHS, "65 or more"))
    by_duration = grouped(lambda index: of_class(jobs[index].duration, _LENGTHS, "longer"))
    return TraceSummary(
        name=trace.name,
        source=trace.source,
        jobs=len(jobs),
        gpu_hours=float(work.sum()),
        span_h=span,
        busy_gpus=float(work.sum()) / span if span else inf,
        duration_h={name: float(np.percentile(durations, point)) for name, point in points.items()},
        widths={str(width): count for width, count in sorted(Counter(job.gpus for job in jobs).items())},
        models=_most_frequent((job.model for job in jobs), limit),
        users=_most_frequent((job.user for job in jobs), limit),
        types=_most_frequent((job.gpu_type for job in jobs), limit),
        copies={str(fork): count for fork, count in sorted(Counter(job.fork for job in jobs).items()) if fork},
        peak_gpus=float(use.levels.max()),
        user_count=len(set(owners) - {""}),
        curves=_curves(arrivals - arrivals.min(), use, span),
        by_gpus=_ordered(by_gpus, ["part of 1", *(name for name, _ in _WIDTHS), "65 or more"]),
        by_duration=_ordered(by_duration, [*(name for name, _ in _LENGTHS), "longer"]),
        by_user=tuple(sorted((group for group in grouped(owners.__getitem__) if group.name),
                             key=lambda group: -group.gpu_hours)[:limit]),
        skipped=dict(imported.skipped),
        cluster=_cluster_load(cluster, jobs, use, span, float(work.sum())) if cluster else None,
    )  # fmt: skip


def _most_frequent(names: Iterable[str], limit: int) -> Mapping[str, int]:
    return dict(Counter(filter(None, names)).most_common(limit))


def _grouped(names: Iterable[str], work: Floats) -> list[JobGroup]:
    counts, hours = Counter[str](), Counter[str]()
    for name, amount in zip(names, work.tolist(), strict=True):
        counts[name] += 1
        hours[name] += amount
    return [JobGroup(name, count, float(hours[name])) for name, count in counts.items()]


def _ordered(groups: Iterable[JobGroup], names: list[str]) -> tuple[JobGroup, ...]:
    return tuple(sorted(groups, key=lambda group: names.index(group.name)))


@dataclass(frozen=True, slots=True)
class _GpuUse:
    """GPUs in use if each job started when it arrives: the `levels` from each of the `times` (hours) to the next."""

    times: Floats
    levels: Floats

    @classmethod
    def of(cls, arrivals: Floats, durations: Floats, gpus: Floats) -> _GpuUse:
        times = np.concatenate([arrivals, arrivals + durations])
        changes = np.concatenate([gpus, -gpus])
        moments, where = np.unique(times, return_inverse=True)
        levels = np.cumsum(np.bincount(where, weights=changes, minlength=len(moments)))
        return cls(moments, np.maximum(levels, 0.0))

    def gpu_hours_until(self, times: Floats) -> Floats:
        """The GPU-hours used until each of these times."""
        used = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * self.levels[:-1])])
        return np.asarray(np.interp(times, self.times, used), dtype=np.float64)

    def part_above(self, gpus: float, until: float) -> float:
        """The part of the time `until` then in which more than so many GPUs are in use."""
        lengths = np.diff(np.minimum(np.append(self.times, until), until))
        return float(lengths[self.levels > gpus].sum() / until)


def _curves(arrivals: Floats, use: _GpuUse, span: float) -> ArrivalCurves:
    step = next((step for step in _STEPS_H if span < _MAX_STEPS * step), span / (_MAX_STEPS - 1))
    if not span:
        return ArrivalCurves(0.0)
    edges = step * np.arange(int(span // step) + 2)
    jobs = np.histogram(arrivals, edges)[0]
    until = np.minimum(edges, span)
    lengths = np.diff(until)
    gpus = np.diff(use.gpu_hours_until(until)) / np.where(lengths > 0, lengths, inf)
    return ArrivalCurves(step, tuple(jobs.tolist()), tuple(np.clip(gpus, 0.0, use.levels.max()).tolist()))


def _cluster_load(
    cluster: ClusterSpec, jobs: Iterable[TraceJob], use: _GpuUse, span: float, work: float
) -> ClusterLoad:
    by_type = Counter(gpu.type for node in cluster.nodes for gpu in node.gpus)
    gpus = by_type.total()

    def most(job: TraceJob) -> int:
        types = set(filter(None, job.gpu_type.split("|")))
        return sum(by_type[gpu_type] for gpu_type in types) if types else gpus

    return ClusterLoad(
        name=cluster.name,
        gpus=gpus,
        load=work / (span * gpus) if span and gpus else inf,
        over=use.part_above(gpus, span) if span else 1.0,
        too_wide=sum(job.gpus + bool(job.milli_gpu) > most(job) for job in jobs),
        least_h=work / gpus if gpus else inf,
    )
