"""What each job wants, worked out once for all jobs that ask alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId
from slurmsched.policies.allocating import Allocating, Portion, Terms
from slurmsched.policies.gang import Gang, gang_of
from slurmsched.policies.placing.grounds import Grounds
from slurmsched.policies.pools import Ints, Mask, Pools

__all__ = ["Level", "Option", "Wish", "Wishes"]


class Level(StrEnum):
    """How much of what it wants a job is placed with."""

    BEST = "best"
    LEAST = "least"


@dataclass(frozen=True, slots=True)
class Option:
    """Pools that the gang may lie in together, with CPUs and MiB for each of its parts at both levels.

    `kinds` says for each pool on the terms of which kind. Where these are not its own, at least one of the `slowest`
    must be taken, whose terms they are: else the gang would be slower than its share.
    """

    mask: Mask
    kinds: Ints
    cpus: dict[Level, Ints]
    memory: dict[Level, Ints]
    slowest: Mask | None = None

    def portion(self, level: Level, pool: int) -> Portion:
        return Portion(int(self.cpus[level][pool]), int(self.memory[level][pool]))

    def kind(self, pool: int) -> int:
        return int(self.kinds[pool])


@dataclass(frozen=True, eq=False, slots=True)
class Wish:
    """A gang and where it may lie, the option to try first being first. Two jobs that ask alike share the object.

    `options` are for one node, `together` for several.
    """

    gang: Gang
    options: tuple[Option, ...]
    together: tuple[Option, ...]
    pinned: tuple[int, ...]
    """Nodes, by position, that must all be part of the place."""
    terms: tuple[Terms, ...]
    """By kind."""


class Wishes:
    """The wish of every job. `closed` are nodes that a job may not be on as things stand, beside those it names."""

    def __init__(
        self,
        pools: Pools,
        grounds: Grounds,
        knowledge: Knowledge,
        allocating: Allocating,
        *,
        mixed: Mapping[JobId, frozenset[str]] | None = None,
        closed: Callable[[Job], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._pools, self._grounds, self._mixed = pools, grounds, mixed or {}
        self._closed = closed
        self._knowledge, self._allocating = knowledge, allocating
        self._position = {node.name: at for at, node in enumerate(pools.nodes)}
        self._known: dict[tuple[object, ...], Wish] = {}
        self._by_job: dict[str, Wish] = {}

    def of(self, job: Job) -> Wish:
        """The same object for the same question."""
        closed = self._closed(job)
        if closed:
            request = replace(job.request, excluded=job.request.excluded | closed)
            return self._known_or_new(replace(job, request=request))
        wish = self._by_job.get(job.id)
        if wish is None:
            wish = self._by_job[job.id] = self._known_or_new(job)
        return wish

    def forget(self, job: Job) -> None:
        """The job asks for something else from here on."""
        self._by_job.pop(job.id, None)

    def _known_or_new(self, job: Job) -> Wish:
        profile = self._knowledge.profile(job)
        mixed = self._mixed.get(job.id, frozenset())
        key = (job.request, job.partitions, job.reservation, id(profile), job.hints.memory_tunable, mixed)
        if key not in self._known:
            self._known[key] = self._wish(job, gang_of(job.request, profile, job.hints.memory_tunable), mixed)
        return self._known[key]

    def _wish(self, job: Job, gang: Gang, mixed: frozenset[str]) -> Wish:
        terms = tuple(self._allocating.terms(gang, kind) for kind in self._pools.kinds)
        runs = self._runs(gang)
        masks = [mask for ground in self._grounds.of(job) if (mask := ground & runs).any()]
        pinned = tuple(self._position.get(name, -1) for name in sorted(job.request.pinned))
        if -1 in pinned:
            masks = []
        options = tuple(_option(mask, terms, self._pools.kind_of) for mask in masks)
        several = masks if gang.most > 1 else []
        together = tuple(option for mask in several for option in self._together(mask, terms))
        together += tuple(option for mask in several for option in self._mixture(mask, terms, mixed))
        return Wish(gang, options, together, pinned, terms)

    def _runs(self, gang: Gang) -> Mask:
        """The pools of GPU types that the job is not known to be unable to run on."""
        scaling = gang.profile.scaling if gang.profile else {}
        unable = {kind for kind, known in scaling.items() if known.at(max(gang.request.gpus, 1)) <= 0}
        return np.array([kind not in unable for kind in self._pools.types], dtype=np.bool_)

    def _together(self, mask: Mask, terms: tuple[Terms, ...]) -> Iterator[Option]:
        """Several pools on one set of terms, for every worker gets the same and the slowest share decides: the pools of
        one kind, or all of one GPU type on the terms of the kind that has the least to share."""
        pools, present = self._pools, [int(kind) for kind in np.unique(self._pools.kind_of[mask])]
        for kind in present:
            yield _option(mask & (pools.kind_of == kind), terms, np.full(len(pools), kind))
        for gpu_type in sorted({pools.kinds[kind].gpu_type for kind in present}):
            alike = [kind for kind in present if pools.kinds[kind].gpu_type == gpu_type]
            if len(alike) > 1:
                leanest = min(alike, key=lambda kind: (terms[kind].least.cpus, terms[kind].least.memory))
                option = _option(mask & np.isin(pools.kind_of, alike), terms, np.full(len(pools), leanest))
                yield replace(option, slowest=pools.kind_of == leanest)

    def _mixture(self, mask: Mask, terms: tuple[Terms, ...], mixed: frozenset[str]) -> Iterator[Option]:
        """Pools of all these types, on the terms of the leanest kind among them. Nodes with several types are left
        out: a job has GPUs of one type on each of its nodes."""
        pools = self._pools
        of_types = np.isin(np.array(pools.types), sorted(mixed)) if mixed else np.zeros(len(pools), dtype=np.bool_)
        here = mask & of_types & (np.bincount(pools.node_of, minlength=len(pools.nodes)) == 1)[pools.node_of]
        kinds = [int(kind) for kind in np.unique(pools.kind_of[here])]
        if len({pools.kinds[kind].gpu_type for kind in kinds}) > 1:
            leanest = min(kinds, key=lambda kind: (terms[kind].least.cpus, terms[kind].least.memory))
            option = _option(here, terms, np.full(len(pools), leanest))
            yield replace(option, slowest=pools.kind_of == leanest)


def _option(mask: Mask, terms: tuple[Terms, ...], kind_of: Ints) -> Option:
    """The terms of each pool's kind as vectors over pools."""
    best, least = [term.best for term in terms], [term.least for term in terms]
    return Option(
        mask,
        kind_of,
        {Level.BEST: _vector([p.cpus for p in best], kind_of), Level.LEAST: _vector([p.cpus for p in least], kind_of)},
        {
            Level.BEST: _vector([p.memory for p in best], kind_of),
            Level.LEAST: _vector([p.memory for p in least], kind_of),
        },
    )


def _vector(by_kind: list[int], kind_of: Ints) -> Ints:
    return np.array(by_kind, dtype=np.int64)[kind_of]
