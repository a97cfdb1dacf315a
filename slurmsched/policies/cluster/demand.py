"""The resource demand of each job: its gang, its candidate pools, and CPUs and memory on each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, Request
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.gang import Gang, gang_of
from slurmsched.policies.cluster.resources import Pools
from slurmsched.policies.sizes import DemandRange, PerTaskResources, Sizing, demand_range


class DemandLevel(StrEnum):
    """With how much CPU and memory a job is placed: `DemandRange.best` or `DemandRange.minimum`."""

    BEST = "best"
    MINIMUM = "least"


@dataclass(frozen=True, slots=True)
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


class DemandCache:
    """The resource demand of each job, computed once for all jobs with the same request.

    `gpu_types` are the types that a job is due where it asked for none: one, or several to be placed on at once.
    `excluded_nodes` returns the names of the nodes that a job may not use now, beside those that its request excludes.
    """

    def __init__(
        self,
        pools: Pools,
        eligibility: Eligibility,
        knowledge: Knowledge,
        sizing: Sizing,
        *,
        gpu_types: Mapping[JobId, frozenset[str]] | None = None,
        excluded_nodes: Callable[[Job], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._pools, self._eligibility, self._gpu_types = pools, eligibility, gpu_types or {}
        self._unrestricted: set[JobId] = set()
        self._excluded_nodes = excluded_nodes
        self._knowledge, self._sizing = knowledge, sizing
        self._position = {node.name: index for index, node in enumerate(pools.nodes)}
        self._by_request: dict[tuple[object, ...], ResourceDemand] = {}
        self._by_job: dict[JobId, tuple[Request, ResourceDemand]] = {}

    def of(self, job: Job) -> ResourceDemand:
        """Return the job's demand: the same object for equal requests."""
        excluded = self._excluded_nodes(job)
        if excluded:
            request = replace(job.original_request, excluded=job.original_request.excluded | excluded)
            return self._cached(replace(job, original_request=request))
        known = self._by_job.get(job.id)
        if known is not None and known[0] is job.original_request:
            return known[1]
        demand = self._cached(job)
        self._by_job[job.id] = job.original_request, demand
        return demand

    def lift_restriction(self, job: Job) -> None:
        """Let the job use any GPU type that it asked for, not only the one that it is due."""
        self._unrestricted.add(job.id)
        self._by_job.pop(job.id, None)

    def restrict_all(self) -> None:
        """Restrict every job again to what it is due."""
        for job in self._unrestricted:
            self._by_job.pop(job, None)
        self._unrestricted.clear()

    def _cached(self, job: Job) -> ResourceDemand:
        profile = self._knowledge.profile(job)
        due = frozenset[str]() if job.id in self._unrestricted else self._gpu_types.get(job.id, frozenset())
        mixed_types = due if len(due) > 1 else frozenset()
        if len(due) == 1 and job.original_request.gpu_type is None:
            (gpu_type,) = due
            job = replace(job, original_request=replace(job.original_request, gpu_type=gpu_type))
        key = (
            job.original_request,
            job.partitions,
            job.reservation,
            id(profile),
            job.hints.memory_tunable,
            mixed_types,
        )
        if key not in self._by_request:
            self._by_request[key] = self._demand(
                job, gang_of(job.original_request, profile, job.hints.memory_tunable), mixed_types
            )
        return self._by_request[key]

    def _demand(self, job: Job, gang: Gang, mixed_types: frozenset[str]) -> ResourceDemand:
        ranges = tuple(demand_range(self._sizing, gang, kind) for kind in self._pools.kinds)
        runnable = self._runnable_mask(gang)
        masks = [mask for eligible in self._eligibility.pool_masks(job) if (mask := eligible & runnable).any()]
        required_nodes = tuple(self._position.get(name, -1) for name in sorted(job.original_request.pinned))
        if -1 in required_nodes:
            masks = []
        single_node = tuple(_candidate_pools(mask, ranges, self._pools.kind_of) for mask in masks)
        multi_node_masks = masks if gang.max_nodes > 1 else []
        multi_node = tuple(
            pools for mask in multi_node_masks for pools in self._one_type_candidates(mask, ranges, gang)
        )
        multi_node += tuple(
            pools for mask in multi_node_masks for pools in self._mixed_type_candidates(mask, ranges, mixed_types)
        )
        milli = [kind.milli_of_shards(gang.shards) for kind in self._pools.kinds] if gang.shards else []
        parts = np.array(milli, dtype=np.int64)[self._pools.kind_of] if milli else None
        return ResourceDemand(gang, single_node, multi_node, required_nodes, ranges, parts)

    def _runnable_mask(self, gang: Gang) -> Mask:
        """Return the pools without those of GPU types that the job's profile says it cannot run on."""
        scaling = gang.profile.scaling if gang.profile and gang.gpus_per_part else {}
        unable = {kind for kind, known in scaling.items() if known.rate_at(max(gang.request.gpus, 1)) <= 0}
        return np.array([kind not in unable for kind in self._pools.gpu_types], dtype=np.bool_)

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
            leanest_first = sorted(by_range, key=lambda size: (size.minimum.cpus, size.minimum.memory))
            for at, leanest in enumerate(leanest_first[:-1]):
                kinds = [kind for size in leanest_first[at:] for kind in by_range[size]]
                usable = mask & np.isin(pools.kind_of, kinds)
                candidates = _candidate_pools(usable, ranges, np.full(len(pools), by_range[leanest][0]))
                yield replace(candidates, one_required=np.isin(pools.kind_of, by_range[leanest]))

    def _mixed_type_candidates(
        self, mask: Mask, ranges: tuple[DemandRange, ...], mixed_types: frozenset[str]
    ) -> Iterator[CandidatePools]:
        """Yield the pools of all these types, with the range of the kind that has the least. Nodes with several types
        are left out: a job has GPUs of one type on each of its nodes."""
        pools = self._pools
        of_types = (
            np.isin(np.array(pools.gpu_types), sorted(mixed_types))
            if mixed_types
            else np.zeros(len(pools), dtype=np.bool_)
        )
        usable = mask & of_types & pools.on_single_type_node
        kinds = [int(kind) for kind in np.unique(pools.kind_of[usable])]
        if len({pools.kinds[kind].gpu_type for kind in kinds}) > 1:
            leanest = min(kinds, key=lambda kind: (ranges[kind].minimum.cpus, ranges[kind].minimum.memory))
            candidates = _candidate_pools(usable, ranges, np.full(len(pools), leanest))
            yield replace(candidates, one_required=pools.kind_of == leanest)


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
