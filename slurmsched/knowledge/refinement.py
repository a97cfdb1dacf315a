"""Refines the profile of a job by the rates that it has reported.

The unit of a profile's speeds is arbitrary and steps differ between jobs, so a single measurement gives no ratio. Two
with different CPUs correct the shape of the matrix, two on different GPU types the ratio of the types. What a job
reports of CPUs is used for that job only, what it reports of GPU types also for its family (`Job.family`). It must not
affect jobs of other owners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from slurmsched.knowledge.estimation import complete_pairs
from slurmsched.knowledge.knowledge import RULE_OF_THUMB, Knowledge, MeasuredPairs, Profile
from slurmsched.knowledge.speed import Scaling, SensitivityMatrix
from slurmsched.model import Job, JobId, MeasuredRate, PairRate

_FLAT_MATRIX: Final = SensitivityMatrix((1.0,), (), ((1.0,),))
_MIN_POINTS: Final = 2
LEAST_OWNERS: Final = 3
"""Owners whose median counts for the jobs of others: of fewer one could set it."""


def self_measured_profiles(
    knowledge: Knowledge, jobs: Sequence[Job], measured: Mapping[JobId, Sequence[MeasuredRate]]
) -> Mapping[JobId, Profile]:
    """Returns a refined profile for each job whose reports add something to the profile of its model."""
    profiles: dict[JobId, Profile] = {}
    for job in jobs:
        points = measured.get(job.id, ())
        refined_profile = refine_profile(knowledge.profile(job), points) if len(points) >= _MIN_POINTS else None
        if refined_profile is not None:
            profiles[job.id] = refined_profile
    return profiles


def family_profiles(
    knowledge: Knowledge,
    jobs: Sequence[Job],
    measured: Mapping[JobId, Sequence[MeasuredRate]],
    family_rates: Mapping[str, Sequence[MeasuredRate]],
) -> Mapping[JobId, Profile]:
    """Returns by job a profile with rates by GPU type from its own reports (`measured`) and those of its family.

    On a type of which the job has reports itself, only these count. A family without a hinted model has but its name in
    common: its rates are a rule of thumb, and a profile comes before them. Jobs to which their family adds nothing are
    missing, and those of which no two types were measured.
    """
    profiles: dict[JobId, Profile] = {}
    shared: dict[tuple[str, int, int], Profile | None] = {}
    for job in jobs:
        own, known = measured.get(job.id, ()), knowledge.profile(job)
        types = {point.gpu_type for point in own}
        others = [point for point in family_rates.get(job.family, ()) if point.gpu_type not in types]
        if not others:
            continue
        key = job.family, job.original_request.gpus, id(known)
        if own:
            found = _family_profile(job, known, [*own, *others])
        elif key in shared:
            found = shared[key]
        else:
            found = shared[key] = _family_profile(job, known, others)
        if found is not None:
            profiles[job.id] = found
    return profiles


def _family_profile(job: Job, known: Profile | None, points: Sequence[MeasuredRate]) -> Profile | None:
    """Returns the profile `known` with the latest rates in `points`, those with the job's number of GPUs first."""
    if known is not None and known.scaling and not job.hints.model:
        return None
    base, latest = known or Profile("", "", {}, "nothing"), dict[str, MeasuredRate]()
    for point in sorted(points, key=lambda point: (point.gpus != job.original_request.gpus, -point.at)):
        latest.setdefault(point.gpu_type, point)
    source = f"measured by jobs of {job.user}, over {base.source}"
    source = source if job.hints.model else f"{RULE_OF_THUMB}: {source}"
    scaling = _rescaled(base, latest)
    return Profile(base.name, base.task, base.matrices, source, scaling) if scaling else None


def measured_pairs(knowledge: Knowledge, rates: Sequence[PairRate]) -> MeasuredPairs:
    """Returns what jobs keep of their rates beside others, by the latest rates that their families reported.

    The rate alone is that with as many GPUs and CPUs, else that of a profile in steps per second; pairs of families
    that have neither are missing. Nobody is faster beside another than alone: a family that says so counts as equally
    fast.
    """
    alone = {(own.family, own.gpu_type, own.gpus, own.cpus): own.rate for own in rates if not own.other}
    by_family, by_model = dict[tuple[str, str, str], float](), dict[tuple[str, str, str], float]()
    for beside in sorted(rates, key=lambda rate: rate.at):
        key = beside.family, beside.gpu_type, beside.gpus, beside.cpus
        full = alone.get(key) or _profiled_rate(knowledge, beside)
        if beside.other and full > 0:
            kept = min(1.0, beside.rate / full)
            by_family[beside.family, beside.other, beside.gpu_type] = kept
            by_model[beside.family, beside.other.partition(" ")[2], beside.gpu_type] = kept
    return MeasuredPairs(by_family, by_model)


def estimated_pairs(knowledge: Knowledge, gpu_type: str) -> Mapping[tuple[str, str], float]:
    """Returns what models keep of their rates beside others, in the pairs that no profile has.

    It is the median of what jobs of at least `LEAST_OWNERS` owners measured, so that none of them can set it; or else
    it is completed from that and from the profiles. Pairs that do not fit into memory tell nothing of speed: they are
    left out.
    """
    owners = defaultdict[tuple[str, str], dict[str, float]](dict)
    for (family, other, kind), kept in knowledge.pairs.by_model.items():
        owner, _, model = family.partition(" ")
        if kind == gpu_type:
            owners[model, other][owner] = kept
    medians = {pair: median(kept.values()) for pair, kept in owners.items() if len(kept) >= LEAST_OWNERS}
    profiled = dict[tuple[str, str], float]()
    for model, profile in knowledge.models.items():
        scaling = profile.scaling.get(gpu_type)
        profiled |= {(model, other): kept for other, kept in (scaling.beside.items() if scaling else ())}
    known = medians | profiled
    completed = complete_pairs(frozenset((*pair, kept) for pair, kept in known.items() if kept > 0))
    return {pair: kept for pair, kept in {**completed, **medians}.items() if pair not in profiled}


def _profiled_rate(knowledge: Knowledge, pair: PairRate) -> float:
    """Returns the steps per second alone by the profile of the family's model; 0.0 if its unit is another."""
    profile = knowledge.models.get(pair.family.partition(" ")[2])
    scaling = profile.scaling.get(pair.gpu_type) if profile and profile.measured is not None else None
    return scaling.rate_at(pair.gpus) if scaling else 0.0


def latest_rates(measured: Mapping[JobId, Sequence[MeasuredRate]]) -> Mapping[JobId, Mapping[str, float]]:
    """Returns the latest reported steps per second, by job and GPU type."""
    return {
        job: {point.gpu_type: point.rate for point in sorted(points, key=lambda point: point.at)}
        for job, points in measured.items()
    }


def refine_profile(known: Profile | None, points: Sequence[MeasuredRate]) -> Profile | None:
    """Returns the profile corrected by the measurements; None if they add nothing. `known` may be None."""
    base = known or Profile("", "", {}, "nothing")
    by_type: dict[str, list[MeasuredRate]] = {}
    for point in sorted(points, key=lambda point: -point.at):
        of_type = by_type.setdefault(point.gpu_type, [])
        # Rates with different numbers of GPUs or nodes are not comparable: those like the latest count.
        if not of_type or (of_type[0].gpus, of_type[0].nodes) == (point.gpus, point.nodes):
            of_type.append(point)
    matrices = {
        kind: matrix for kind, rates in by_type.items() if (matrix := _corrected_matrix(base.matrix(kind), rates))
    }
    whole = Profile(base.name, base.task, {**base.matrices, **matrices}, base.source, base.scaling)
    scaling = _rescaled(whole, {kind: rates[0] for kind, rates in by_type.items()})
    if not matrices and not scaling:
        return None
    source = f"measured by the job itself, over {base.source}"
    return Profile(base.name, base.task, whole.matrices, source, scaling or base.scaling)


def _corrected_matrix(known: SensitivityMatrix | None, points: Sequence[MeasuredRate]) -> SensitivityMatrix | None:
    """Returns the matrix scaled at the measured CPU counts, linearly in between and constantly outside them."""
    base = known or _FLAT_MATRIX
    at: dict[float, list[float]] = {}
    for point in points:
        at.setdefault(point.cpus, []).append(point.rate / base.speed_at(point.cpus, point.memory))
    if len(at) < _MIN_POINTS:
        return None
    measured = sorted(at)
    factors = [float(np.mean(at[cpus])) for cpus in measured]
    cpus = sorted({*measured, *(known.cpus if known else ())})
    speed = tuple(
        tuple(base.speed_at(count, memory) * factor for memory in base.memory or (0.0,))
        for count, factor in zip(cpus, np.interp(cpus, measured, factors).tolist(), strict=True)
    )
    return SensitivityMatrix(tuple(cpus), base.memory, speed)


def _rescaled(base: Profile, latest: Mapping[str, MeasuredRate]) -> Mapping[str, Scaling]:
    """Returns the rates by GPU type in the job's steps; empty with fewer than two measured types."""
    if len(latest) < _MIN_POINTS:
        return {}
    rates = {kind: _rate_at_share(base.matrix(kind), point) for kind, point in latest.items()}
    factors = {
        kind: rates[kind] / expected
        for kind, known in base.scaling.items()
        if kind in latest and (expected := known.rate_at(latest[kind].gpus, latest[kind].nodes)) > 0
    }
    unit = float(np.mean(list(factors.values()))) if factors else None
    scaling = {kind: Scaling((point.gpus,), (rates[kind],)) for kind, point in latest.items() if kind not in factors}
    if unit is not None:  # without a type in both, the profile's rates cannot be converted to steps
        others = {kind: known for kind, known in base.scaling.items() if kind not in scaling}
        scaling |= {kind: known.scaled_by(factors.get(kind, unit)) for kind, known in others.items()}
    return scaling


def _rate_at_share(matrix: SensitivityMatrix | None, point: MeasuredRate) -> float:
    """Returns the rate converted to the GPU-proportional share of CPUs and memory."""
    if matrix is None:
        return point.rate
    return point.rate * matrix.speed_at(point.fair_cpus, point.fair_memory) / matrix.speed_at(point.cpus, point.memory)


def expected_rate(profile: Profile, point: MeasuredRate) -> float | None:
    """Returns the steps per second that the profile predicts for this allocation; None if its unit is arbitrary or it
    lacks the GPU type."""
    scaling = profile.scaling.get(point.gpu_type)
    if profile.measured is None or scaling is None:
        return None
    rate, matrix = scaling.rate_at(point.gpus, point.nodes), profile.matrix(point.gpu_type)
    if matrix is None:
        return rate
    return rate * matrix.speed_at(point.cpus, point.memory) / matrix.speed_at(point.fair_cpus, point.fair_memory)
