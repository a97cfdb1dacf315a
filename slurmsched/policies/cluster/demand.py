"""The resource demand of each job: its gang, its candidate pools, and CPUs and memory on each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.knowledge import Knowledge, Profile
from slurmsched.model import MILLI_PER_GPU, Job, JobId, Request
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.gang import Gang, fewest_nodes, gang_of
from slurmsched.policies.cluster.resources import Pools
from slurmsched.policies.limits import ResourceCap
from slurmsched.policies.sizes import DemandRange, PerTaskResources, Sizing, capped_range, demand_range


class DemandLevel(StrEnum):
    """With how much CPU and memory a job is placed: `DemandRange.best` or `DemandRange.minimum`."""

    BEST = "best"
    MINIMUM = "least"


@dataclass(frozen=True, eq=False, slots=True)
class CandidatePools:
    """Pools that the gang may use together, with the CPUs and MiB of each of its parts at both levels.

    `kinds` is for each pool the kind whose demand range applies. Where that is not the pool's own kind, the placement
    must include a pool of `one_required`, which are the pools of that kind: otherwise the gang would be slower than at
    its proportional share. `cpus` and `memory` are by pool.
    """

    mask: Mask
    kinds: Ints
    cpus: dict[DemandLevel, Ints]
    memory: dict[DemandLevel, Ints]
    one_required: Mask | None = None

    def per_task(self, level: DemandLevel, pool: int) -> PerTaskResources:
        return PerTaskResources(int(self.cpus[level][pool]), int(self.memory[level][pool]))

    def kind(self, pool: int) -> int:
        return int(self.kinds[pool])


@dataclass(frozen=True, eq=False, slots=True)
class ResourceDemand:
    """A gang and its candidate pools, in the order to try them. Jobs with equal requests share the object.

    `single_node` are the candidates on one node, `multi_node` those on several.
    """

    gang: Gang
    single_node: tuple[CandidatePools, ...]
    multi_node: tuple[CandidatePools, ...]
    required_nodes: tuple[int, ...]
    """Indices of nodes that must all be part of the placement."""
    ranges: tuple[DemandRange, ...]
    """By index of the pool kind."""
    milli: Ints | None = None
    """For a job with shards, what it takes of one device of each pool, in milli-GPU; [pools]."""
    needs_mix: bool = False
    """Whether no GPU type alone has enough for the gang, so that it is placed on several, as Slurm does."""

    def of_whole_devices(self) -> ResourceDemand:
        """Return the demand of a job with shards if it is to get all shards of each of its devices."""
        if self.milli is None:
            return self
        return replace(self, milli=np.where((self.milli > 0) & (self.milli < MILLI_PER_GPU), MILLI_PER_GPU, self.milli))


_NO_NAMES: Final[frozenset[str]] = frozenset()

_MOST_KEPT: Final = 1024
"""Demands that are kept for later rounds, after which none is: requests are their owners', and endless."""


@lru_cache(maxsize=4)
def _kept_demands(_layout: tuple[object, ...]) -> dict[tuple[object, ...], ResourceDemand]:
    """Return the demands of earlier rounds in which the cluster had the same pools."""
    return {}


@dataclass(frozen=True, eq=False, slots=True)
class DemandClass:
    """Jobs that ask alike: all that demands depend on in a job and its profile is equal. There is one object for each
    class. `key` tells it apart."""

    key: tuple[object, ...]
    has_checkpoint: bool


class DemandClasses:
    """The class of each job. Profiles that differ in nothing but rates make no difference."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._classes: dict[tuple[object, ...], DemandClass] = {}
        self._by_job: dict[JobId, tuple[Job, DemandClass]] = {}
        self._used: dict[tuple[int, int], tuple[object, ...]] = {}
        self._matrices: dict[int, tuple[object, ...]] = {}

    def of(self, job: Job) -> DemandClass:
        """Return the job's class."""
        known = self._by_job.get(job.id)
        if known is not None and known[0] is job:
            return known[1]
        found = self._find(job)
        if known is None:
            self._by_job[job.id] = job, found
        return found

    def _find(self, job: Job) -> DemandClass:
        hints, profile = job.hints, self._knowledge.profile(job)
        has_checkpoint = hints.checkpoint_signal is not None and job.requeue and hints.move is not False
        key = (
            job.original_request,
            job.partitions,
            job.reservation,
            self._used_of(profile, job.original_request.gpus),
            hints.memory_tunable,
            hints.cpus_tunable,
            has_checkpoint,
        )
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = DemandClass(key, has_checkpoint)
        return found

    def _used_of(self, profile: Profile | None, gpus: int) -> tuple[object, ...]:
        """Return what the demand of a job with so many GPUs depends on in its profile, which outlives this: the
        sensitivity, what earlier runs told and the types that it cannot run on, but no rates, by which jobs that
        measure themselves all differ."""
        if profile is None:
            return ()
        key = id(profile), gpus
        if key not in self._used:
            matrices = self._matrices.get(id(profile.matrices))
            if matrices is None:
                of_types = sorted((kind, id(matrix)) for kind, matrix in profile.matrices.items())
                matrices = self._matrices[id(profile.matrices)] = tuple(of_types)
            of_use = profile.spares, profile.suffices, profile.same_work, profile.least_memory
            self._used[key] = profile.was_measured, matrices, of_use, _unable_types(profile, gpus)
        return self._used[key]


class DemandCache:
    """The resource demand of each job, computed once for all jobs that ask alike, and kept for later rounds.

    `gpu_types` are the types that a job is due where it asked for none: one, or several to be placed on at once.
    `excluded_nodes` returns the names of the nodes that a job may not use now, beside those that its request excludes,
    `cap` the most that limits let a job have. `classes` are those of the same knowledge, if others have them too.
    """

    def __init__(
        self,
        pools: Pools,
        eligibility: Eligibility,
        knowledge: Knowledge,
        sizing: Sizing,
        *,
        gpu_types: Mapping[JobId, frozenset[str]] | None = None,
        excluded_nodes: Callable[[Job], frozenset[str]] | None = None,
        cap: Callable[[Job], ResourceCap | None] = lambda _: None,
        classes: DemandClasses | None = None,
    ) -> None:
        self._pools, self._eligibility, self._gpu_types = pools, eligibility, gpu_types or {}
        self._unrestricted: set[JobId] = set()
        self._excluded_nodes, self._cap = excluded_nodes, cap
        self._knowledge, self._sizing = knowledge, sizing
        self._position = {node.name: index for index, node in enumerate(pools.nodes)}
        self._by_class: dict[tuple[object, ...], ResourceDemand] = {}
        self._by_job: dict[JobId, tuple[Request, ResourceDemand]] = {}
        self._kept = _kept_demands(pools.layout)
        self.classes = classes or DemandClasses(knowledge)

    def of(self, job: Job) -> ResourceDemand:
        """Return the job's demand: the same object for jobs that ask alike."""
        excluded = self._excluded_nodes(job) if self._excluded_nodes is not None else _NO_NAMES
        if not excluded:
            known = self._by_job.get(job.id)
            if known is not None and known[0] is job.original_request:
                return known[1]
        due = _NO_NAMES if job.id in self._unrestricted else self._gpu_types.get(job.id, _NO_NAMES)
        cap, closed = self._cap(job), self._eligibility.closed_nodes(job)
        key = self.classes.of(job), due, cap, closed, excluded
        demand = self._by_class.get(key)
        if demand is None:
            demand = self._by_class[key] = self._of_class(job, due, cap, excluded)
        if not excluded:
            self._by_job[job.id] = job.original_request, demand
        return demand

    def lift_restriction(self, job: Job) -> None:
        """Let the job use any GPU type that it asked for, not only the one that it is due."""
        self._unrestricted.add(job.id)
        self._by_job.pop(job.id, None)

    def restrict(self, job: Job) -> None:
        """Restrict the job again to what it is due."""
        self._unrestricted.discard(job.id)
        self._by_job.pop(job.id, None)

    def restrict_all(self) -> None:
        """Restrict every job again to what it is due."""
        for job in self._unrestricted:
            self._by_job.pop(job, None)
        self._unrestricted.clear()

    def _of_class(
        self, job: Job, due: frozenset[str], cap: ResourceCap | None, excluded: frozenset[str]
    ) -> ResourceDemand:
        """Return the demand of a job that is due these types and may not use the excluded nodes."""
        asked = self.classes.of(job)
        # The nodes over which the job may spread are those it asked for, whatever type it is due.
        node_gpus = self._eligibility.node_gpus(job) if _is_divisible(job.original_request) else ()
        if excluded:
            job = replace(
                job, original_request=replace(job.original_request, excluded=job.original_request.excluded | excluded)
            )
        mixed_types = due if len(due) > 1 else _NO_NAMES
        if len(due) == 1 and job.original_request.gpu_type is None:
            (gpu_type,) = due
            unrestricted = self._remembered(job, asked, node_gpus, frozenset(), cap)
            if unrestricted.needs_mix:
                return unrestricted
            job = replace(job, original_request=replace(job.original_request, gpu_type=gpu_type))
        return self._remembered(job, asked, node_gpus, mixed_types, cap)

    def _remembered(
        self,
        job: Job,
        asked: DemandClass,
        node_gpus: tuple[int, ...],
        mixed_types: frozenset[str],
        cap: ResourceCap | None,
    ) -> ResourceDemand:
        """Return the demand of a job of this class, but for its request; the same object for equal ones."""
        request, masks = job.original_request, self._eligibility.pool_masks(job)
        key = (cap, request, *asked.key[1:], mixed_types, node_gpus, self._eligibility.closed_nodes(job))
        known = self._by_class.get(key)
        if known is not None:
            return known
        # Names of nodes are not in the layout. What is kept holds the profile whose parts the key has by address.
        lasting = None if request.pinned else (self._sizing, *key, *(mask.tobytes() for mask in masks))
        demand = self._kept.get(lasting) if lasting else None
        if demand is None:
            profile = self._knowledge.profile(job)
            gang = gang_of(
                request,
                profile,
                job.hints.memory_tunable,
                job.hints.cpus_tunable,
                node_gpus=node_gpus,
                has_checkpoint=asked.has_checkpoint,
            )
            spreads = not _is_divisible(request) or fewest_nodes(request, node_gpus) > 0
            demand = self._demand(job, gang, masks, mixed_types, cap=cap, spreads=spreads)
            if lasting:
                self._keep(lasting, demand)
        self._by_class[key] = demand
        return demand

    def _keep(self, lasting: tuple[object, ...], demand: ResourceDemand) -> None:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[lasting] = demand

    def _demand(
        self,
        job: Job,
        gang: Gang,
        eligible: tuple[Mask, ...],
        mixed_types: frozenset[str],
        *,
        cap: ResourceCap | None,
        spreads: bool,
    ) -> ResourceDemand:
        if cap is not None and cap.nodes is not None:
            gang = replace(gang, max_nodes=max(gang.min_nodes, min(gang.max_nodes, cap.nodes)))
        ranges = tuple(capped_range(demand_range(self._sizing, gang, kind), gang, cap) for kind in self._pools.kinds)
        runnable = self._runnable_mask(gang)
        masks = [mask for pools in eligible if (mask := pools & runnable).any()]
        required_nodes = tuple(self._position.get(name, -1) for name in sorted(job.original_request.pinned))
        if -1 in required_nodes:
            masks = []
        single_node = tuple(_candidate_pools(mask, ranges, self._pools.kind_of) for mask in masks)
        multi_node_masks = masks if gang.max_nodes > 1 and spreads else []
        multi_node = tuple(
            pools for mask in multi_node_masks for pools in self._one_type_candidates(mask, ranges, gang)
        )
        whole_gpus = bool(gang.gpus_per_part) and job.original_request.gpu_type is None
        needs_mix = whole_gpus and not any(
            self._suffices(candidates, gang, required_nodes) for candidates in multi_node
        )
        if needs_mix:
            mixed_types = frozenset(self._pools.known_types)
        mixed = tuple(
            pools for mask in multi_node_masks for pools in self._mixed_type_candidates(mask, ranges, mixed_types)
        )
        multi_node += mixed
        milli = [kind.milli_of_shards(gang.shards) for kind in self._pools.kinds] if gang.shards else []
        parts = np.array(milli, dtype=np.int64)[self._pools.kind_of] if milli else None
        return ResourceDemand(
            gang, single_node, multi_node, required_nodes, ranges, parts, needs_mix=needs_mix and bool(mixed)
        )

    def _suffices(self, candidates: CandidatePools, gang: Gang, required_nodes: tuple[int, ...]) -> bool:
        """Return whether these pools could hold the gang, on the required nodes too, if they were empty."""
        pools, least = self._pools, DemandLevel.MINIMUM
        units, memory = pools.cpu_units(gang.request.threads_per_core), pools.memory[pools.node_of]
        cpus, of_part = units.within(pools.cpus[pools.node_of]), np.maximum(candidates.cpus[least], 1)
        parts = np.minimum(pools.device_count // gang.gpus_per_part, cpus // of_part)
        if per_cpu := gang.request.memory_per_cpu:
            parts = np.minimum(parts, units.with_memory_for(memory // per_cpu) // of_part)
        else:
            parts = np.minimum(parts, memory // np.maximum(candidates.memory[least], 1))
        usable = candidates.mask & (memory >= gang.memory_per_node) & (cpus >= gang.cpus_per_node)
        held = np.where(
            usable & (parts >= (gang.parts_per_node or 1)), np.minimum(parts, gang.parts_per_node or parts), 0
        )
        named = np.isin(pools.node_of, required_nodes)
        if len(np.unique(pools.node_of[named & (held > 0)])) < len(required_nodes):
            return False
        held = np.concatenate((held[named & (held > 0)], np.sort(held[~named])[::-1]))[: gang.max_nodes]
        return int((held > 0).sum()) >= gang.min_nodes and int(held.sum()) >= gang.parts

    def _runnable_mask(self, gang: Gang) -> Mask:
        """Return the pools without those of GPU types that the job's profile says it cannot run on, and without nodes
        that are too small for a job of whose memory only the nodes' size counts."""
        unable = _unable_types(gang.profile, gang.request.gpus) if gang.profile and gang.gpus_per_part else frozenset()
        able = np.array([kind not in unable for kind in self._pools.gpu_types], dtype=np.bool_)
        least = gang.request.memory if gang.request.memory_unscheduled else 0
        return able & (self._pools.memory[self._pools.node_of] >= least)

    def _one_type_candidates(self, mask: Mask, ranges: tuple[DemandRange, ...], gang: Gang) -> Iterator[CandidatePools]:
        """Yield pools with one demand range for all: every worker gets the same, and the smallest share decides.

        These are the pools of one GPU type whose kinds have the same range, and then those of several ranges, with the
        smallest of them. For a job with shards their GPUs have as many shards; a job without GPUs uses all its pools.
        """
        pools, present = self._pools, [int(kind) for kind in np.unique(self._pools.kind_of[mask])]
        if not gang.gpus_per_part and not gang.shards:
            yield _candidate_pools(mask, ranges, pools.kind_of)
            return
        alike = defaultdict[tuple[str, int], dict[DemandRange, list[int]]](lambda: defaultdict(list))
        for kind in present:
            shards = pools.kinds[kind].shards if gang.shards else 0
            alike[pools.kinds[kind].gpu_type, shards][ranges[kind]].append(kind)
        for by_range in alike.values():
            for kinds in by_range.values():
                yield _candidate_pools(mask & np.isin(pools.kind_of, kinds), ranges, np.full(len(pools), kinds[0]))
        for _, by_range in sorted(alike.items(), key=lambda entry: entry[0]):
            for leanest, kinds in _leanest_first(by_range)[:-1]:
                yield self._with_range_of(leanest, mask & np.isin(pools.kind_of, kinds), ranges)

    def _with_range_of(self, leanest: list[int], mask: Mask, ranges: tuple[DemandRange, ...]) -> CandidatePools:
        """Return these pools with the range of the leanest kinds, of which a placement includes one."""
        candidates = _candidate_pools(mask, ranges, np.full(len(self._pools), leanest[0]))
        return replace(candidates, one_required=np.isin(self._pools.kind_of, leanest))

    def _mixed_type_candidates(
        self, mask: Mask, ranges: tuple[DemandRange, ...], mixed_types: frozenset[str]
    ) -> Iterator[CandidatePools]:
        """Yield the pools of all these types, with the range of the kinds that have the least; then those without these
        kinds, and so on. Nodes with several types are left out: a job has GPUs of one type on each of its nodes."""
        pools = self._pools
        of_types = (
            np.isin(np.array(pools.gpu_types), sorted(mixed_types))
            if mixed_types
            else np.zeros(len(pools), dtype=np.bool_)
        )
        usable = mask & of_types & pools.on_single_type_node
        by_range = defaultdict[DemandRange, list[int]](list)
        for kind in np.unique(pools.kind_of[usable]).tolist():
            by_range[ranges[kind]].append(kind)
        for leanest, kinds in _leanest_first(by_range):
            if len({pools.kinds[kind].gpu_type for kind in kinds}) > 1:
                yield self._with_range_of(leanest, usable & np.isin(pools.kind_of, kinds), ranges)


def _unable_types(profile: Profile, gpus: int) -> frozenset[str]:
    """Return the GPU types that a job with so many GPUs is known not to run on."""
    return frozenset(
        [kind for kind, known in profile.scaling.items() if not all(known.rate) and known.rate_at(max(gpus, 1)) <= 0]
    )


def _is_divisible(request: Request) -> bool:
    """Whether the GPUs may lie on several nodes in parts of any size."""
    return request.gpus > 1 and not request.gpus_per_node


def _leanest_first(by_range: Mapping[DemandRange, list[int]]) -> list[tuple[list[int], list[int]]]:
    """Return the kinds of each range, the smallest first, with the kinds of ranges that are not smaller."""
    ordered = sorted(by_range, key=lambda size: (size.minimum.cpus, size.minimum.memory))
    return [
        (by_range[leanest], [kind for size in ordered[at:] for kind in by_range[size]])
        for at, leanest in enumerate(ordered)
    ]


def _candidate_pools(mask: Mask, ranges: tuple[DemandRange, ...], kind_of: Ints) -> CandidatePools:
    """Return the demand ranges as vectors over pools; `kind_of` gives the kind whose range each pool has."""
    best, minimum = [demand.best for demand in ranges], [demand.minimum for demand in ranges]
    return CandidatePools(
        mask,
        kind_of,
        {
            DemandLevel.BEST: _by_pool([p.cpus for p in best], kind_of),
            DemandLevel.MINIMUM: _by_pool([p.cpus for p in minimum], kind_of),
        },
        {
            DemandLevel.BEST: _by_pool([p.memory for p in best], kind_of),
            DemandLevel.MINIMUM: _by_pool([p.memory for p in minimum], kind_of),
        },
    )


def _by_pool(by_kind: list[int], kind_of: Ints) -> Ints:
    return np.array(by_kind, dtype=np.int64)[kind_of]
