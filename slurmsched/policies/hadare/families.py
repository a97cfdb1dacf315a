"""Forked jobs on a live cluster: their copies, what is left of them, and how fast each copy is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, Share
from slurmsched.policies.hadare.estimating import Throughputs
from slurmsched.policies.hadare.machines import estimates

__all__ = ["Family", "families"]


@dataclass(frozen=True, slots=True)
class Family:
    """One forked job: `left` of its steps are not known to be done, as its `copies` in the queue have said.

    `known`: its throughput by GPU type. `own`: steps per second that a copy has measured itself, by GPU type.
    """

    job: JobId
    copies: tuple[Job, ...]
    left: int
    known: Throughputs
    own: Mapping[JobId, Mapping[str, float]]

    def rate(self, copy: JobId, shares: Iterable[Share]) -> float:
        """Of a copy with these shares: what it measured there, else another copy on such GPUs, else the estimate. The
        slowest type holds the others back."""
        types = {share.gpu_type for share in shares}
        return min((self.own.get(copy, {}).get(kind) or self.known.of(kind) for kind in types), default=0.0)

    @property
    def measured(self) -> bool:
        """Whether any copy has told how fast it is."""
        return bool(self.known.measured)


def families(
    jobs: Iterable[Job], knowledge: Knowledge, types: Iterable[str], done: Mapping[JobId, int]
) -> list[Family]:
    """The forked jobs among these, by name. `done`: the steps that were known to be done before, by job."""
    copies: dict[JobId, list[Job]] = {}
    for job in jobs:
        if job.copy_of:
            copies.setdefault(job.copy_of, []).append(job)
    return [_family(job, copies[job], knowledge, tuple(types), done.get(job, 0)) for job in sorted(copies)]


def _family(job: JobId, copies: list[Job], knowledge: Knowledge, types: tuple[str, ...], before: int) -> Family:
    total = max(copy.hints.fork or 0 for copy in copies)
    said = max((knowledge.steps.get(copy.id, 0) for copy in copies), default=0)
    own = {copy.id: knowledge.measured[copy.id] for copy in copies if copy.id in knowledge.measured}
    by_type: dict[str, list[float]] = {}
    for rates in own.values():
        for kind, rate in rates.items():
            by_type.setdefault(kind, []).append(rate)
    measured = {kind: sum(rates) / len(rates) for kind, rates in by_type.items()}
    known = Throughputs(_estimated(copies[0], knowledge, types), measured)
    return Family(job, tuple(copies), total - min(total, max(before, said)), known, own)


def _estimated(copy: Job, knowledge: Knowledge, types: tuple[str, ...]) -> Mapping[str, float]:
    """By its model's profile where that knows all the types, else by equation 10."""
    profile = knowledge.profile(copy)
    scaling = profile.scaling if profile else {}
    if not all(kind in scaling for kind in types):
        return estimates(types)
    return {kind: scaling[kind].at(max(copy.request.gpus, 1)) for kind in types}
