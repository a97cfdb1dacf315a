"""What a job has measured of itself, over what is known of its model: measured beats profiled beats imported.

The unit of a profile's speed is free, and a job's steps are its own, so one measurement says nothing of ratios. Two
with different CPUs correct the shape of the matrix, two on different GPU types the ratio of these. It is used for this
job alone: what one job claims of itself touches no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.scaling import Scaling
from slurmsched.knowledge.sensitivity import SensitivityMatrix
from slurmsched.model import Job, JobId, Measured

__all__ = ["latest_rates", "own_profiles", "refined"]

_FLAT: Final = SensitivityMatrix((1.0,), (), ((1.0,),))
_TWO: Final = 2


def own_profiles(
    knowledge: Knowledge, jobs: Sequence[Job], measured: Mapping[JobId, Sequence[Measured]]
) -> Mapping[JobId, Profile]:
    """The profile of each job that has measured more of itself than its model's profile knows."""
    found: dict[JobId, Profile] = {}
    for job in jobs:
        points = measured.get(job.id, ())
        own = refined(knowledge.profile(job), points) if len(points) >= _TWO else None
        if own is not None:
            found[job.id] = own
    return found


def latest_rates(measured: Mapping[JobId, Sequence[Measured]]) -> Mapping[JobId, Mapping[str, float]]:
    """By job and GPU type, the job's own steps per second when it last ran on that type."""
    return {
        job: {point.gpu_type: point.rate for point in sorted(points, key=lambda point: point.at)}
        for job, points in measured.items()
    }


def refined(known: Profile | None, points: Sequence[Measured]) -> Profile | None:
    """The profile with what was measured in it; None where that adds nothing. `known` may be no profile at all."""
    base = known or Profile("", "", {}, "nothing")
    by_type: dict[str, list[Measured]] = {}
    for point in sorted(points, key=lambda point: -point.at):
        of_type = by_type.setdefault(point.gpu_type, [])
        # Rates at another number of GPUs or nodes are of another unit: the latest of each counts.
        if not of_type or (of_type[0].gpus, of_type[0].nodes) == (point.gpus, point.nodes):
            of_type.append(point)
    matrices = {kind: matrix for kind, own in by_type.items() if (matrix := _matrix(base.matrix(kind), own))}
    whole = Profile(base.name, base.task, {**base.matrices, **matrices}, base.source, base.scaling)
    scaling = _scaling(whole, {kind: own[0] for kind, own in by_type.items()})
    if not matrices and not scaling:
        return None
    source = f"measured by the job itself, over {base.source}"
    return Profile(base.name, base.task, whole.matrices, source, scaling or base.scaling)


def _matrix(known: SensitivityMatrix | None, points: Sequence[Measured]) -> SensitivityMatrix | None:
    """The known matrix, corrected at the measured CPUs and linearly in between; beyond them as at the last."""
    base = known or _FLAT
    at: dict[float, list[float]] = {}
    for point in points:
        at.setdefault(point.cpus, []).append(point.rate / base.at(point.cpus, point.memory))
    if len(at) < _TWO:
        return None
    seen = sorted(at)
    factors = [float(np.mean(at[cpus])) for cpus in seen]
    cpus = sorted({*seen, *(known.cpus if known else ())})
    speed = tuple(
        tuple(base.at(count, memory) * factor for memory in base.memory or (0.0,))
        for count, factor in zip(cpus, np.interp(cpus, seen, factors).tolist(), strict=True)
    )
    return SensitivityMatrix(tuple(cpus), base.memory, speed)


def _scaling(base: Profile, latest: Mapping[str, Measured]) -> Mapping[str, Scaling]:
    """Rates by GPU type in the job's own steps; nothing from fewer than two types."""
    if len(latest) < _TWO:
        return {}
    rates = {kind: _at_share(base.matrix(kind), point) for kind, point in latest.items()}
    factors = {
        kind: rates[kind] / expected
        for kind, known in base.scaling.items()
        if kind in latest and (expected := known.at(latest[kind].gpus, latest[kind].nodes)) > 0
    }
    unit = float(np.mean(list(factors.values()))) if factors else None
    found = {kind: Scaling((point.gpus,), (rates[kind],)) for kind, point in latest.items() if kind not in factors}
    if unit is not None:  # without a type that both know, the profile's rates cannot be told in steps
        others = {kind: known for kind, known in base.scaling.items() if kind not in found}
        found |= {kind: known.times(factors.get(kind, unit)) for kind, known in others.items()}
    return found


def _at_share(matrix: SensitivityMatrix | None, point: Measured) -> float:
    """The rate with the GPU-proportional share of CPUs and memory."""
    if matrix is None:
        return point.rate
    return point.rate * matrix.at(point.fair_cpus, point.fair_memory) / matrix.at(point.cpus, point.memory)
