"""Placement of a gang: on the fewest nodes, as evenly as possible.

Source: Mohan et al. (Synergy, OSDI 2022), section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import MILLI_PER_GPU, NodeAllocation, ReasonCode, Resources
from slurmsched.policies.cluster.demand import CandidatePools, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.gang import Gang
from slurmsched.policies.cluster.resources import Allocation, FreeResources, PoolKind, Pools
from slurmsched.policies.sizes import PerTaskResources, resources_on_node
from slurmsched.policies.stages import Situation


@dataclass(frozen=True, slots=True)
class Placement:
    """The `parts` of a gang in each of `pools`, each part with `per_task`. The demand range is that of `kind`.

    `devices` are as in `Allocation`: empty until the placement is allocated. With `whole_devices` a job that asked for
    some shards of a device gets all of them.
    """

    gang: Gang
    pools: tuple[int, ...]
    parts: tuple[int, ...]
    per_task: PerTaskResources
    kind: int
    devices: tuple[tuple[int, ...], ...] = ()
    whole_devices: bool = False

    def allocation(self, cluster: Pools) -> Allocation:
        """Return the allocation by pool. An exclusive job gets all CPUs and all memory of its nodes."""
        gpus = tuple(parts * self.gang.gpus_per_part for parts in self.parts)
        part = cluster.kinds[self.kind].milli_of_shards(self.gang.shards) if self.gang.shards else 0
        part = MILLI_PER_GPU if part and self.whole_devices else part
        if self.gang.request.exclusive:
            whole = [cluster.node(pool).total for pool in self.pools]
            cpus, memory = tuple(node.cpus for node in whole), tuple(node.memory for node in whole)
            return Allocation(self.pools, gpus, cpus, memory, True, part, self.devices)
        with_cpus = (min(self.parts),) * len(self.pools) if self.gang.cpus_per_node else self.parts
        most = self.parts if self.gang.memory_by_part else (max(self.parts),) * len(self.pools)
        charged = [
            self.on_node(cluster.kind(pool), parts, memory_parts)
            for pool, parts, memory_parts in zip(self.pools, with_cpus, most, strict=True)
        ]
        cpus, memory = tuple(cpus for cpus, _ in charged), tuple(memory for _, memory in charged)
        if self.gang.request.whole_memory:
            memory = tuple(cluster.node(pool).total.memory for pool in self.pools)
        return Allocation(self.pools, gpus, cpus, memory, False, part, self.devices)

    def on_node(self, kind: PoolKind, parts: int, memory_parts: int) -> tuple[int, int]:
        """Return the CPUs and MiB charged on a node of this kind; see `resources_on_node`."""
        units = kind.cpu_units(self.gang.request.threads_per_core)
        size = self.per_task
        return resources_on_node(self.gang, size.cpus, size.memory, parts, memory_parts=memory_parts, units=units)

    def with_devices(self, free: FreeResources) -> Placement:
        """Return the placement with the devices that Slurm will choose of these, unless it has some."""
        return self if self.devices else replace(self, devices=free.devices_for(self.allocation(free.pools)))

    def node_allocations(self, cluster: Pools) -> tuple[NodeAllocation, ...]:
        """Return the allocation by node, as in the model. Its `indices` are the GPUs that Slurm should choose."""
        allocation, with_gpus = self.allocation(cluster), bool(self.gang.gpus_per_part or self.gang.shards)
        return tuple(
            NodeAllocation(
                cluster.node(pool).name,
                Resources(allocation.gpus[at], allocation.cpus[at], allocation.memory[at]),
                cluster.gpu_types[pool] if with_gpus else "",
                tuple(cluster.devices[pool][device].index for device in self.devices[at]) if self.devices else (),
                int(cluster.shards[pool]) if self.gang.shards and self.whole_devices else self.gang.shards,
            )
            for at, pool in enumerate(allocation.pools)
        )


@dataclass(frozen=True, slots=True)
class PartDemand:
    """What `parts` of a gang take in each pool: so many whole GPUs and, by pool, `cpus`, `memory` in MiB and `milli` of
    one device."""

    gpus: int
    parts: int
    cpus: Ints
    memory: Ints
    milli: Ints | None


class NodeScore(Protocol):
    """A preference among pools that fit. Its classes inherit from it."""

    reason: ReasonCode | None = None
    """Why a job is placed where it is, where that is worth saying."""

    @property
    def name(self) -> str: ...

    def prepared(self, situation: Situation, pools: Pools) -> NodeScore:  # noqa: ARG002 as scores that need it override this
        """Return the score with what it needs to know of a round; most need nothing."""
        return self

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        """Return the best `count` of the candidate pools, best first. Candidates ascend, and are at least as many."""


@dataclass(frozen=True, slots=True)
class _Consolidated(NodeScore):
    """The node with the least free resources that are enough (Synergy, section 4.2): by GPUs, then CPUs, then memory;
    the first of equal nodes. Whole nodes stay free for the jobs that need them."""

    name: str = "fewest free resources that fit"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        if count > 1:
            on = free.pools.node_of[candidates]
            return candidates[np.lexsort((free.memory[on], free.cpus[on], free.gpus[candidates]))[:count]]
        return consolidated_equals(free, candidates)[:1]


def consolidated_equals(free: FreeResources, candidates: Ints) -> Ints:
    """Return the candidate pools among which consolidation takes the first for a job on one node."""
    nodes = free.pools.node_of
    candidates = _with_least_free(candidates, free.gpus[candidates])
    candidates = _with_least_free(candidates, free.cpus[nodes[candidates]])
    return _with_least_free(candidates, free.memory[nodes[candidates]])


def _with_least_free(pools: Ints, free: Ints) -> Ints:
    return cast(Ints, pools[free == free.min()])


@dataclass(frozen=True, slots=True)
class _FirstFit(NodeScore):
    """The first by index, as Slurm does with nodes of equal weight."""

    name: str = "first fit"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        return candidates[:count]


@dataclass(frozen=True, slots=True)
class _MostCpus(NodeScore):
    """The node with the most free CPUs, of these the one with the fewest free GPUs."""

    name: str = "most free CPUs"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        return candidates[np.lexsort((free.gpus[candidates], -free.cpus[free.pools.node_of[candidates]]))[:count]]


@dataclass(frozen=True, slots=True)
class _Aligned(NodeScore):
    """The node with whose free resources the demand is best aligned: the largest dot product of both, as parts of the
    whole node (Grandl et al., Tetris, SIGCOMM 2014, section 3.2); the first of equal nodes."""

    name: str = "best alignment"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        pools, node = free.pools, free.pools.node_of[candidates]
        alignment = np.zeros(len(candidates))
        for asked, left, whole in (
            (demand.gpus, free.gpus[candidates], pools.device_count[candidates]),
            (demand.cpus[candidates], free.cpus[node], pools.cpus[node]),
            (demand.memory[candidates], free.memory[node], pools.memory[node]),
        ):
            alignment += asked * left / np.maximum(whole, 1).astype(np.float64) ** 2
        return candidates[np.argsort(-alignment, kind="stable")[:count]]


@dataclass(frozen=True, slots=True)
class _LowestRank(NodeScore):
    """The pools of the lowest rank, and among them what `node_score` prefers. `ranks` are by pool."""

    ranks: Ints
    node_score: NodeScore
    name: str

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        ranks, taken = self.ranks[candidates], list[int]()
        for rank in np.unique(ranks):
            of_rank = candidates[ranks == rank]
            taken += self.node_score.select(free, demand, of_rank, min(count - len(taken), len(of_rank))).tolist()
            if len(taken) == count:
                break
        return np.array(taken, dtype=np.int64)


def of_best_types(node_score: NodeScore, gpu_types: Sequence[str], pools: Pools, kept: Sequence[int] = ()) -> NodeScore:
    """Return a score that prefers GPU types in this order, then any others, and of each type the nodes that no pool in
    `kept` is on; the same score if there are neither."""
    if not gpu_types and not kept:
        return node_score
    place = {gpu_type: rank for rank, gpu_type in enumerate(gpu_types)}
    of_type = np.array([place.get(kind, len(place)) for kind in pools.gpu_types], dtype=np.int64)
    is_kept = np.isin(pools.node_of, pools.node_of[list(kept)])
    return _LowestRank(2 * of_type + is_kept, node_score, f"best GPU type, then {node_score.name}")


CONSOLIDATED: NodeScore = _Consolidated()
FIRST_FIT: NodeScore = _FirstFit()
MOST_CPUS: NodeScore = _MostCpus()
ALIGNED: NodeScore = _Aligned()


def find_placement(
    demand: ResourceDemand,
    level: DemandLevel,
    free: FreeResources,
    node_score: NodeScore,
    among: Mask | None = None,
) -> Placement | None:
    """Return a placement of the whole gang at this demand level, or None where it does not fit.

    `among` are the pools that it may use, beside what its demand says; [pools].
    """
    fits: list[_PoolFit] = []
    for count in range(max(demand.gang.min_nodes, len(demand.required_nodes)), demand.gang.max_nodes + 1):
        if count == 1:
            on_one_node = [_PoolFit(demand, candidates, level, free, among) for candidates in demand.single_node]
            placement = _first_placement(on_one_node, node_score, count)
        else:
            fits = fits or [_PoolFit(demand, candidates, level, free, among) for candidates in demand.multi_node]
            placement = _first_placement(fits, node_score, count)
        if placement is not None:
            return placement
    return None


def fitting_pools(demand: ResourceDemand, level: DemandLevel, free: FreeResources) -> Iterator[Ints]:
    """Yield the pools that hold one node's parts of the gang, for each set of pools that it may use."""
    parts = demand.gang.parts_per_node or -(-demand.gang.parts // demand.gang.min_nodes)
    only_required = len(demand.required_nodes) == demand.gang.max_nodes
    among = np.isin(free.pools.node_of, demand.required_nodes) if only_required else None
    for candidates in demand.single_node:
        yield _PoolFit(demand, candidates, level, free, among).fitting(parts, parts)


def _first_placement(fits: Iterable[_PoolFit], node_score: NodeScore, count: int) -> Placement | None:
    for fit in fits:
        candidates = fit.candidates
        for pools, parts in fit.splits(node_score, count):
            per_task = candidates.per_task(fit.level, pools[0])
            return Placement(fit.demand.gang, pools, parts, per_task, candidates.kind(pools[0]))
    return None


_MOST_CHARGES: Final = 64
"""Charges by pool that are kept: 13 MB of them on 12,500 nodes."""


class _PoolFit:
    """The free resources of candidate pools, pool by pool, and how many of the gang's parts they hold."""

    def __init__(
        self,
        demand: ResourceDemand,
        candidates: CandidatePools,
        level: DemandLevel,
        free: FreeResources,
        among: Mask | None = None,
    ) -> None:
        node_of = free.pools.node_of
        self.demand, self.candidates, self.level, self.free = demand, candidates, level, free
        self.part_cpus, self.part_memory = candidates.cpus[level], candidates.memory[level]
        self.units = free.pools.cpu_units(demand.gang.request.threads_per_core)
        by_pool = slice(None) if free.pools.one_on_each_node else node_of
        self.cpus, self.memory = free.cpus[by_pool], free.memory[by_pool]
        self.usable = candidates.mask & (free.exclusive_jobs[by_pool] == 0)
        if among is not None:
            self.usable &= among
        if demand.gang.request.exclusive:
            self.usable &= (self.cpus >= free.pools.cpus[node_of]) & (self.memory >= free.pools.memory[node_of])
        if demand.gang.request.whole_memory:
            self.usable &= self.memory >= free.pools.memory[node_of]
        self.required = [node_of == pinned for pinned in demand.required_nodes]
        self.required += [candidates.one_required] if candidates.one_required is not None else []
        self._parts_of_largest: Ints | None = None

    def splits(self, node_score: NodeScore, count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield pools and the parts in each, the most even split first."""
        gang = self.demand.gang
        even, uneven_too = -(-gang.parts // count), count > 1 and not gang.parts_per_node
        if uneven_too and self._most_parts(count) < gang.parts:
            return
        if gang.parts == even * count:
            pools = self._select(node_score, even, count)
            if pools is not None:
                yield pools, (even,) * count
        if not uneven_too:
            return
        for most in range(even, gang.parts - count + 2):
            uneven = self._uneven_split(self._capacity(most, most), count)
            if uneven is not None:
                yield uneven

    def fitting(self, parts: int, most: int) -> Ints:
        """Return the pools that hold `parts`, with memory for `most`: every node of a job gets the same memory, unless
        it asks for it by CPU or GPU."""
        gang = self.demand.gang
        cpus, memory = self._charged(parts, parts if gang.memory_by_part else most)
        fits = self.usable & (self.free.gpus >= parts * gang.gpus_per_part) if gang.gpus_per_part else self.usable
        if (milli := self.demand.milli) is not None:
            fits &= (self.free.milli >= milli[:, None]).any(axis=1)
        return np.flatnonzero(fits & (self.cpus >= cpus) & (self.memory >= memory))

    def _charged(self, parts: int, memory_parts: int) -> tuple[Ints, Ints]:
        """Return the CPUs and MiB that so many parts take of a node; [pools]. Many jobs in turn ask alike."""
        kept, gang = self.free.pools.charges, self.demand.gang
        key = (gang, self.candidates, self.level, parts, memory_parts)
        if (known := kept.get(key)) is None:
            if len(kept) >= _MOST_CHARGES:
                kept.clear()
            known = kept[key] = resources_on_node(
                gang, self.part_cpus, self.part_memory, parts, memory_parts=memory_parts, units=self.units
            )
        return known

    def _most_parts(self, count: int) -> int:
        """Return a bound of the parts that any `count` pools hold together."""
        if self._parts_of_largest is None:
            self._parts_of_largest = np.sort(self._capacity(1, self.demand.gang.parts))[::-1].cumsum()
        return int(self._parts_of_largest[:count][-1])

    def _capacity(self, memory_parts: int, most: int) -> Ints:
        """Return the parts that each pool holds, up to `most`, with memory for `memory_parts` on each node."""
        capacity = np.zeros_like(self.free.gpus)
        pools = self.fitting(1, memory_parts)
        gang, cpus = self.demand.gang, np.maximum(self.part_cpus[pools], 1)
        by_gpus = self.free.gpus[pools] // gang.gpus_per_part
        by_cpus = self.units.within(self.cpus)[pools] // cpus
        capacity[pools] = np.minimum(np.minimum(by_gpus, by_cpus), most)
        if per_cpu := gang.request.memory_per_cpu:
            by_memory = self.units.with_memory_for(self.memory // per_cpu)[pools] // cpus
            capacity[pools] = np.minimum(capacity[pools], by_memory)
        elif gang.memory_by_part:
            by_memory = self.memory[pools] // np.maximum(self.part_memory[pools], 1)
            capacity[pools] = np.minimum(capacity[pools], by_memory)
        return capacity

    def _select(self, node_score: NodeScore, parts: int, count: int) -> tuple[int, ...] | None:
        """Return `count` of the pools that hold so many parts, the required ones first; None if there are too few."""
        fitting, of_gang = self.fitting(parts, parts), self.demand
        if len(fitting) < count:
            return None
        cpus, memory = self._charged(parts, parts)
        demand = PartDemand(parts * of_gang.gang.gpus_per_part, parts, cpus, memory, of_gang.milli)
        taken = self._take_required(fitting, lambda choices: int(node_score.select(self.free, demand, choices, 1)[0]))
        if taken is None or len(taken) > count:
            return None
        if len(taken) == count:
            return tuple(taken)
        others = fitting[~np.isin(fitting, taken)] if taken else fitting
        return (*taken, *(int(pool) for pool in node_score.select(self.free, demand, others, count - len(taken))))

    def _uneven_split(self, capacity: Ints, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the required pools, then those that hold most, and the parts in each, at least 1; None if too few."""
        largest_first = np.lexsort((self.free.gpus, -capacity))
        largest_first = largest_first[capacity[largest_first] > 0]
        taken = self._take_required(largest_first, lambda choices: int(choices[0]))
        if taken is None or not len(taken) <= count <= len(largest_first):
            return None
        taken += [int(pool) for pool in largest_first[~np.isin(largest_first, taken)][: count - len(taken)]]
        left, parts = self.demand.gang.parts, list[int]()
        for later, pool in zip(range(count - 1, -1, -1), taken, strict=True):
            parts.append(min(int(capacity[pool]), left - later))
            left -= parts[-1]
        return (tuple(taken), tuple(parts)) if left == 0 else None

    def _take_required(self, fitting: Ints, pick: Callable[[Ints], int]) -> list[int] | None:
        """Return a fitting pool for each requirement, chosen by `pick`; None where a requirement has no such pool."""
        taken = list[int]()
        for mask in self.required:
            choices = fitting[mask[fitting]]
            if not len(choices):
                return None
            if not mask[taken].any():
                taken.append(pick(choices))
        return taken
