"""How many GPUs of the slowest type one of each type is worth to a user's jobs (Gandiva_fair, slides 11 and 12)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from slurmsched.knowledge import Knowledge, Scaling
from slurmsched.model import Job

__all__ = ["by_speed", "listed_speedups", "slowed_down", "user_speedups"]

_FELL: Final = 0.8
"""A rate below this part of what the same model has made before has fallen."""


def by_speed(knowledge: Knowledge, types: Iterable[str]) -> tuple[str, ...]:
    """The types, the fastest first, by what is known of all models; those of which nothing is known come last.

    Where models disagree the median of their speed-ups over any common type decides.
    """
    known = [profile.scaling for profile in knowledge.models.values() if profile.scaling]
    scores: dict[str, float] = {}
    for kind in types:
        rates = [scaling[kind].at(1) / best for scaling in known if kind in scaling and (best := _best(scaling))]
        scores[kind] = median(rates) if rates else 0.0
    return tuple(sorted(scores, key=lambda kind: (-scores[kind], kind)))


def _best(scaling: Mapping[str, Scaling]) -> float:
    return max((known.at(1) for known in scaling.values()), default=0.0)


def user_speedups(
    jobs: Sequence[Job], knowledge: Knowledge, types: Sequence[str], slowest: str
) -> Mapping[str, Mapping[str, float]]:
    """By user and type, the mean over the user's jobs of which it is known, by their GPUs.

    A type that nothing is known of is missing: the user does not trade it. What jobs measured beats profiles.
    """
    sums = defaultdict[tuple[str, str], float](float)
    gpus = defaultdict[tuple[str, str], int](int)
    alike: dict[tuple[str | None, str | None, int], Mapping[str, float]] = {}
    for job in jobs:
        key = (job.hints.model, job.hints.task, job.request.gpus)
        own = knowledge.measured.get(job.id)
        known = _over(own, types, slowest) if own else alike.get(key)
        if known is None:
            known = alike[key] = _of_profile(job, knowledge, types, slowest)
        for kind, speedup in known.items():
            sums[job.user, kind] += speedup * job.request.gpus
            gpus[job.user, kind] += job.request.gpus
    found = defaultdict[str, dict[str, float]](dict)
    for (user, kind), total in sums.items():
        found[user][kind] = total / gpus[user, kind]
    return found


def _of_profile(job: Job, knowledge: Knowledge, types: Sequence[str], slowest: str) -> Mapping[str, float]:
    profile = knowledge.profile(job)
    scaling = profile.scaling if profile else {}
    rates = {kind: scaling[kind].at(max(job.request.gpus, 1)) for kind in types if kind in scaling}
    return _over(rates, types, slowest)


def _over(rates: Mapping[str, float], types: Iterable[str], slowest: str) -> Mapping[str, float]:
    base = rates.get(slowest, 0.0)
    return {kind: rates[kind] / base for kind in types if base > 0 and rates.get(kind, 0.0) > 0}


def listed_speedups(knowledge: Knowledge, types: Sequence[str], slowest: str) -> Mapping[str, float]:
    """The median over all models that profiles know: a figure that no user at the market has said."""
    found: dict[str, list[float]] = defaultdict(list)
    for profile in knowledge.models.values():
        rates = {kind: known.at(1) for kind, known in profile.scaling.items()}
        for kind, speedup in _over(rates, types, slowest).items():
            found[kind].append(speedup)
    return {kind: median(speedups) for kind, speedups in found.items()}


def slowed_down(
    best: Mapping[str, float], now: Mapping[str, Mapping[str, float]], slowest: str, jobs: Mapping[str, Job]
) -> frozenset[str]:
    """Users whose jobs measure clearly less on the slowest type than the same model made there before, while they lose
    nothing on a faster one: as if to be worth more at the market (slide 12).

    `best` are the best rates so far by `model type`, `now` the rates of each job by type.
    """
    found: set[str] = set()
    for job_id, rates in now.items():
        job = jobs.get(job_id)
        if job is None or job.hints.model is None:
            continue
        fell = {kind for kind, rate in rates.items() if rate < _FELL * best.get(f"{job.hints.model} {kind}", 0.0)}
        if slowest in fell and rates.keys() - fell:
            found.add(job.user)
    return frozenset(found)
