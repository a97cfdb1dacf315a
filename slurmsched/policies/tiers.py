"""PriorityTier: Slurm looks at all waiting jobs of a higher tier before those of a lower one, and so do rounds.

Partitions without a node in common do not compete: their jobs keep their places in the order, whatever their tiers.
Only waiting jobs have tiers; which running job makes room is the order's to say, but no job makes room for one of a
lower tier.

Source: "PriorityTier" in slurm.conf(5) of Slurm 25.11.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurmsched.model import Job, JobId, JobState, Partition, RankedJob
from slurmsched.policies.stages import PreemptionRule, Situation


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tier of each job, and the name of the partitions that it competes in; empty where all tiers are equal."""

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    tier_of: Mapping[JobId, int] = field(default_factory=dict)
    rivals_of: Mapping[JobId, str] = field(default_factory=dict)

    @classmethod
    def of(cls, situation: Situation) -> Tiers:
        """Return the tiers of the jobs in their partitions; a job of several partitions counts with its highest."""
        known = situation.snapshot.partitions_by_name
        tiers_of_partitions = [partition.priority_tier for partition in known.values()]
        if not tiers_of_partitions or min(tiers_of_partitions) == max(tiers_of_partitions):
            return cls()
        named = {job.id: [name for name in job.partitions if name in known] for job in situation.jobs}
        rivals = _rivals(known.values(), set(map(tuple, named.values())))
        tiers = {job.id: situation.snapshot.priority_tier(job) for job in situation.jobs if named[job.id]}
        rivals_of = {job: rivals[named[job][0]] for job in tiers}
        seen = defaultdict[str, set[int]](set)
        for job, tier in tiers.items():
            seen[rivals_of[job]].add(tier)
        ranked = {job for job, rival in rivals_of.items() if len(seen[rival]) > 1}
        return cls(
            {job.id: job for job in situation.jobs if job.id in ranked},
            {job: tiers[job] for job in ranked},
            {job: rivals_of[job] for job in ranked},
        )

    def ranked(self, ranking: Sequence[RankedJob]) -> tuple[RankedJob, ...]:
        """Return the order with the waiting jobs of higher tiers first, among those that they compete with."""
        if not self.jobs:
            return tuple(ranking)
        places, in_order = defaultdict[str, list[int]](list), list(ranking)
        for place, ranked in enumerate(ranking):
            if self._waits(ranked.job):
                places[self.rivals_of[ranked.job]].append(place)
        for taken in places.values():
            by_tier = sorted((ranking[place] for place in taken), key=lambda ranked: -self.tier_of[ranked.job])
            for place, ranked in zip(taken, by_tier, strict=True):
                in_order[place] = replace(ranked, key=f"PriorityTier {self.tier_of[ranked.job]}, {ranked.key}")
        return tuple(in_order)

    def above(self, job: JobId, ranking: Iterable[RankedJob]) -> Iterator[Job]:
        """Yield the waiting jobs that Slurm looks at before this one, whatever their priority, in order."""
        if job in self.jobs:
            for ranked in ranking:
                if self._waits(ranked.job) and self._is_below(job, ranked.job):
                    yield self.jobs[ranked.job]

    def limited(self, rule: PreemptionRule, rank_of: Mapping[JobId, int]) -> PreemptionRule:
        """Return the order's rule for newcomers of these tiers: only jobs that rank behind the newcomer, and behind all
        running jobs of higher tiers, make room for it."""
        if not self.jobs:
            return rule
        lowest = defaultdict[str, Counter[int]](Counter)
        for job, tier in self.tier_of.items():
            if not self._waits(job):
                of_rivals = lowest[self.rivals_of[job]]
                of_rivals[tier] = max(of_rivals[tier], rank_of[job])

        def makes_room(newcomer: Job, running: Job) -> bool:
            if newcomer.id in self.jobs:
                tier, higher = self.tier_of[newcomer.id], lowest[self.rivals_of[newcomer.id]].items()
                last = max((rank for of_tier, rank in higher if of_tier > tier), default=-1)
                if rank_of[running.id] <= max(last, rank_of[newcomer.id]):
                    return False
            return rule(newcomer, running)

        return makes_room

    def _waits(self, job: JobId) -> bool:
        return job in self.jobs and self.jobs[job].state is JobState.PENDING

    def _is_below(self, job: JobId, other: JobId) -> bool:
        return self.rivals_of[job] == self.rivals_of[other] and self.tier_of[job] < self.tier_of[other]


def _rivals(partitions: Iterable[Partition], named: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return for each partition the name of one that stands for all that it competes with: they have nodes in common,
    or a job names both."""
    rivals = {partition.name: partition.name for partition in partitions}
    by_node = defaultdict[str, list[str]](list)
    for partition in partitions:
        for node in partition.nodes:
            by_node[node].append(partition.name)
    for together in {*map(tuple, by_node.values()), *map(tuple, named)}:
        merged = {rivals[name] for name in together}
        if len(merged) > 1:
            one = min(merged)
            rivals = {name: one if rival in merged else rival for name, rival in rivals.items()}
    return rivals
