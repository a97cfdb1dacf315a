"""Pools, which are the GPUs of one type on one node, allocations on them, and what is free of every node and device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import TypeVar

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import MILLI_PER_GPU, Gpu, Job, Node, NodeAllocation, SameNodes, Snapshot
from slurmsched.policies.cluster.cpu_units import CpuUnits

Holder = TypeVar("Holder")


@dataclass(frozen=True, slots=True)
class PoolKind:
    """What equal pools have in common: the GPU type, the GPUs, CPUs and MiB of the whole node, and shards per GPU.

    `threads`, `unit` and `bills_cpus` are `threads_per_core`, `cpu_unit` and `bills_cpus` of its nodes.
    """

    gpu_type: str
    gpus: int
    cpus: int
    memory: int
    shards: int = 0
    threads: int = 1
    unit: int = 1
    bills_cpus: bool = False

    def cpu_units(self, threads: int) -> CpuUnits[int]:
        """Return how CPUs are counted for a job that uses so many threads of each core; 0: all."""
        usable = self.unit // self.threads * min(threads or self.threads, self.threads)
        return CpuUnits(self.unit, usable, 1 if self.bills_cpus else usable)

    def milli_of_shards(self, shards: int) -> int:
        """Return the milli-GPU of so many shards of one GPU; 0 where the GPUs have no shards."""
        return MILLI_PER_GPU * shards // self.shards if self.shards else 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs, CPUs and MiB of a job in each of its pools, as Slurm charges them. `exclusive` closes the nodes to all
    other jobs.

    A job with shards has no whole GPU, but `part` milli-GPU of a device of each pool. `devices` are the positions in
    each pool of its devices; those of a pool, or of all, are empty where they are not known.
    """

    pools: tuple[int, ...]
    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    memory: tuple[int, ...]
    exclusive: bool = False
    part: int = 0
    devices: tuple[tuple[int, ...], ...] = ()

    def by_pool(self) -> dict[int, tuple[int, int, int]]:
        """Return GPUs, CPUs and MiB by pool."""
        return dict(zip(self.pools, zip(self.gpus, self.cpus, self.memory, strict=True), strict=True))


class Pools:
    """All pools of the cluster: the GPUs of one type on one node are a pool. They do not change during a round.

    A node without GPUs is a pool too, of type "". `node_of` is each pool's node, as an index into `nodes`; `kind_of`
    its kind, as an index into `kinds`. `cpus` and `memory` (MiB) are the totals of each node, `device_count` and
    `shards` the GPUs of each pool and the shards of each of these.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)
        keys = [
            (index, gpu_type) for index, node in enumerate(self.nodes) for gpu_type in sorted(node.gpu_types) or [""]
        ]
        self.gpu_types = tuple(gpu_type for _, gpu_type in keys)
        self.node_of: Ints = np.array([index for index, _ in keys], dtype=np.int64)
        self._by_node_and_type = {
            (self.nodes[index].name, gpu_type): pool for pool, (index, gpu_type) in enumerate(keys)
        }
        self._first_on_node = {self.nodes[index].name: pool for pool, (index, _) in reversed([*enumerate(keys)])}
        self.devices = tuple(_devices(self.nodes[index], gpu_type) for index, gpu_type in keys)
        """The GPUs of each pool by index."""
        kinds = [
            _kind(self.nodes[index], gpu_type, gpus) for (index, gpu_type), gpus in zip(keys, self.devices, strict=True)
        ]
        self.kinds = tuple(dict.fromkeys(kinds))
        kind_index = {kind: index for index, kind in enumerate(self.kinds)}
        self.kind_of: Ints = np.array([kind_index[kind] for kind in kinds], dtype=np.int64)
        self.cpus: Ints = np.array([node.total.cpus for node in self.nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.total.memory for node in self.nodes], dtype=np.int64)
        self.device_count: Ints = np.array([len(gpus) for gpus in self.devices], dtype=np.int64)
        self.shards: Ints = np.array([kind.shards for kind in kinds], dtype=np.int64)
        self.rounding: Ints = np.where(self.shards > 0, MILLI_PER_GPU // np.maximum(self.shards, 1), 1)
        """Milli-GPU of one shard: a device that lacks less than that is idle, since parts are rounded down."""
        self.one_on_each_node = len(keys) == len(self.nodes)
        """Whether what is by pool is by node too."""
        self.charges: dict[tuple[object, ...], tuple[Ints, Ints]] = {}
        """What a gang's parts take of the CPUs and MiB of each pool, for those who are placed again and again."""
        self._cpu_units: dict[int, CpuUnits[Ints]] = {}

    @property
    def layout(self) -> tuple[object, ...]:
        """What is equal of pools of which only the names and features of nodes differ."""
        return self.kinds, *(by_pool.tobytes() for by_pool in (self.kind_of, self.node_of, self.device_count))

    def cpu_units(self, threads: int) -> CpuUnits[Ints]:
        """Return how the node of each pool counts CPUs for a job that uses so many threads of each core; 0: all."""
        if threads not in self._cpu_units:
            kinds = [kind.cpu_units(threads) for kind in self.kinds]
            unit, usable, billed = (
                np.array(column, dtype=np.int64)[self.kind_of]
                for column in ([of.unit for of in kinds], [of.usable for of in kinds], [of.billed for of in kinds])
            )
            self._cpu_units[threads] = CpuUnits(unit, usable, billed)
        return self._cpu_units[threads]

    def __len__(self) -> int:
        return len(self.gpu_types)

    @cached_property
    def known_types(self) -> tuple[str, ...]:
        """The GPU types that there are, in the order of their first pools."""
        return tuple(dict.fromkeys(kind for kind in self.gpu_types if kind))

    def of_type(self, gpu_type: str) -> Mask:
        """Return the pools with GPUs of this type; [pools]."""
        return np.array([kind.gpu_type == gpu_type for kind in self.kinds], dtype=np.bool_)[self.kind_of]

    @property
    def first_on_node(self) -> Mask:
        """The first pool of each node: a job without GPUs is placed there; [pools]."""
        return np.diff(self.node_of, prepend=-1) > 0

    @property
    def on_single_type_node(self) -> Mask:
        """The pools of nodes with GPUs of one type; [pools]."""
        return np.asarray((np.bincount(self.node_of, minlength=len(self.nodes)) == 1)[self.node_of], dtype=np.bool_)

    def of_nodes(self, nodes: Sequence[int] | Ints) -> Ints:
        """The pools of the nodes with these indices, in order."""
        unique = np.unique(np.asarray(nodes, dtype=np.int64))
        return unique if self.one_on_each_node else np.flatnonzero(np.isin(self.node_of, unique))

    def on_nodes(self, names: Collection[str]) -> Mask:
        """The pools of these nodes; [pools]."""
        return np.array([node.name in names for node in self.nodes], dtype=np.bool_)[self.node_of]

    def node(self, pool: int) -> Node:
        return self.nodes[int(self.node_of[pool])]

    def kind(self, pool: int) -> PoolKind:
        return self.kinds[int(self.kind_of[pool])]

    def allocation(self, on_nodes: Iterable[NodeAllocation], exclusive: bool = False) -> Allocation:
        """Return the allocation by pool. Nodes that are not in the snapshot are left out.

        The devices are known where GPUs have shards and Slurm says which ones the job has.
        """
        taken = [(pool, on_node) for on_node in on_nodes if (pool := self._pool(on_node)) is not None]
        devices = tuple(self._positions(pool, on_node) for pool, on_node in taken)
        parts = [self.kind(pool).milli_of_shards(on_node.shards) for pool, on_node in taken if on_node.shards]
        return Allocation(
            tuple(pool for pool, _ in taken),
            tuple(on_node.resources.gpus for _, on_node in taken),
            tuple(on_node.resources.cpus for _, on_node in taken),
            tuple(on_node.resources.memory for _, on_node in taken),
            exclusive,
            parts[0] if parts else 0,
            devices if any(devices) else (),
        )

    def held_by(self, job: Job) -> Allocation:
        """Return what Slurm shows that the job has."""
        return self.allocation(job.allocations, exclusive=job.original_request.exclusive)

    def _pool(self, on_node: NodeAllocation) -> int | None:
        return self._by_node_and_type.get((on_node.node, on_node.gpu_type), self._first_on_node.get(on_node.node))

    def _positions(self, pool: int, on_node: NodeAllocation) -> tuple[int, ...]:
        """Return the positions of the job's devices in the pool; none where they are not all known."""
        if not self.shards[pool]:
            return ()
        held = tuple(at for at, gpu in enumerate(self.devices[pool]) if gpu.index in on_node.indices)
        return held if len(held) == (1 if on_node.shards else on_node.resources.gpus) else ()


@lru_cache(maxsize=2)
def _pools_of(same: SameNodes[Node]) -> Pools:
    """Return the pools of these nodes, for which a round asks several times."""
    return Pools(same.nodes)


def pools_of(snapshot: Snapshot) -> Pools:
    """Return the pools of the snapshot's nodes."""
    return _pools_of(SameNodes(snapshot.nodes))


def _devices(node: Node, gpu_type: str) -> tuple[Gpu, ...]:
    return tuple(sorted((gpu for gpu in node.gpus if gpu.type == gpu_type), key=lambda gpu: gpu.index))


def _kind(node: Node, gpu_type: str, gpus: tuple[Gpu, ...]) -> PoolKind:
    return PoolKind(
        gpu_type,
        len(node.gpus),
        node.total.cpus,
        node.total.memory,
        min((gpu.shards for gpu in gpus), default=0),
        node.threads_per_core,
        node.cpu_unit,
        node.bills_cpus,
    )


@dataclass(slots=True, eq=False, weakref_slot=True)
class FreeResources:
    """Free GPUs by pool, and by node the free CPUs, the free MiB and the number of jobs with exclusive use.

    `gpus` counts devices that are entirely idle. `milli` has the idle milli-GPU of each device; where Slurm has not
    said which devices a job has, those of lowest index are assumed. `changed_nodes` logs each node that changed.
    A negative amount is allocated twice: nothing fits there until something is released.
    """

    pools: Pools
    gpus: Ints
    cpus: Ints
    memory: Ints
    exclusive_jobs: Ints
    _milli: Ints
    _uncertain: set[int] = field(default_factory=set)
    """Pools whose `gpus` changed without known devices."""
    changed_nodes: list[int] = field(default_factory=list)

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> FreeResources:
        """Return the free resources of a snapshot: the idle part of each GPU, unallocated CPUs and memory."""
        pools = pools_of(snapshot)
        free = cls.of_empty_cluster(pools)
        used = np.array([gpu.used for devices in pools.devices for gpu in devices], dtype=np.int64)
        free.milli[_existing(pools)] = np.maximum(MILLI_PER_GPU - used, 0)
        free.gpus = _whole(free.milli)
        free.cpus -= np.array([node.used.cpus for node in pools.nodes], dtype=np.int64)
        free.memory -= np.array([node.used.memory for node in pools.nodes], dtype=np.int64)
        for job in snapshot.jobs:
            if job.original_request.exclusive and job.allocations:
                for pool in pools.allocation(job.allocations).pools:
                    free.exclusive_jobs[pools.node_of[pool]] += 1
        return free

    @classmethod
    def of_empty_cluster(cls, pools: Pools) -> FreeResources:
        """Return the resources of the cluster with nothing on it."""
        nobody = np.zeros(len(pools.nodes), dtype=np.int64)
        milli = np.where(_existing(pools), MILLI_PER_GPU, 0)
        return cls(pools, pools.device_count.copy(), pools.cpus.copy(), pools.memory.copy(), nobody, milli)

    @classmethod
    def none(cls, pools: Pools) -> FreeResources:
        """Return nothing free: the start of a sum."""
        by_pool, by_node = np.zeros(len(pools), dtype=np.int64), np.zeros(len(pools.nodes), dtype=np.int64)
        return cls(pools, by_pool, by_node, by_node.copy(), by_node.copy(), np.zeros_like(_existing(pools), np.int64))

    @property
    def milli(self) -> Ints:
        """Idle milli-GPU of each device, 0 where a pool has no such device; [pools, devices]. Not to be changed."""
        if self._uncertain:
            pools = np.fromiter(self._uncertain, np.int64, len(self._uncertain))
            self._uncertain.clear()
            self._milli[pools] = _with_whole(self._milli[pools], _existing(self.pools, pools), self.gpus[pools])
        return self._milli

    def idle_by_type(self) -> Counter[str]:
        """Return the idle GPUs of each type."""
        idle = Counter[str]()
        for gpu_type, gpus in zip(self.pools.gpu_types, self.gpus.tolist(), strict=True):
            idle[gpu_type] += max(gpus, 0)
        return idle

    def copy(self) -> FreeResources:
        return FreeResources(
            self.pools,
            self.gpus.copy(),
            self.cpus.copy(),
            self.memory.copy(),
            self.exclusive_jobs.copy(),
            self._milli.copy(),
            set(self._uncertain),
        )

    def plus(self, more: FreeResources) -> FreeResources:
        """Return the sum of both, where `more` is of CPUs and memory only."""
        total = self.copy()
        total.cpus += more.cpus
        total.memory += more.memory
        return total

    def with_released(self, gpus: Ints, cpus: Ints, memory: Ints, exclusive_jobs: Ints, devices: Ints) -> FreeResources:
        """Return what is free once these are released: GPUs by pool, the others by node, and known devices.

        `devices` has rows of pool, position and milli-GPU; each device is released once, in one row or several.
        """
        milli, known = self._milli.copy(), np.zeros_like(gpus)
        if len(devices):
            np.add.at(milli, (devices[:, 0], devices[:, 1]), devices[:, 2])
            milli = np.where(milli > MILLI_PER_GPU - self.pools.rounding[:, None], MILLI_PER_GPU, milli)
            known = _whole(milli) - _whole(self._milli)
        return FreeResources(
            self.pools,
            self.gpus + gpus + known,
            self.cpus + cpus,
            self.memory + memory,
            self.exclusive_jobs - exclusive_jobs,
            milli,
            set(np.flatnonzero((gpus > 0) | (self.gpus < 0)).tolist()) | self._uncertain,
        )

    def intersection(self, other: FreeResources) -> FreeResources:
        """Return what is free in both."""
        return FreeResources(
            self.pools,
            np.minimum(self.gpus, other.gpus),
            np.minimum(self.cpus, other.cpus),
            np.minimum(self.memory, other.memory),
            np.maximum(self.exclusive_jobs, other.exclusive_jobs),
            np.minimum(self._milli, other._milli),
            set(np.flatnonzero(self.gpus != other.gpus).tolist()) | self._uncertain | other._uncertain,
        )

    def intersect_on(self, nodes: Ints, one: FreeResources, other: FreeResources) -> None:
        """Make these nodes what is free there in both."""
        pools = self.pools.of_nodes(nodes)
        self.gpus[pools] = np.minimum(one.gpus[pools], other.gpus[pools])
        self.cpus[nodes] = np.minimum(one.cpus[nodes], other.cpus[nodes])
        self.memory[nodes] = np.minimum(one.memory[nodes], other.memory[nodes])
        self.exclusive_jobs[nodes] = np.maximum(one.exclusive_jobs[nodes], other.exclusive_jobs[nodes])
        self._milli[pools] = np.minimum(one._milli[pools], other._milli[pools])
        differing, here = set(pools[one.gpus[pools] != other.gpus[pools]].tolist()), {*pools.tolist()}
        self._uncertain -= here
        self._uncertain |= differing | (here & one._uncertain) | (here & other._uncertain)
        self.changed_nodes.extend(nodes.tolist())

    def on_nodes_of(self, chosen: Iterable[int]) -> FreeResources:
        """Return what is free on the nodes of these pools; on the others all there is, as if nothing were used."""
        of_nodes, milli = FreeResources.of_empty_cluster(self.pools), self.milli
        nodes = self.pools.node_of[list(chosen)]
        pools = self.pools.of_nodes(nodes)
        of_nodes.gpus[pools], of_nodes.milli[pools] = self.gpus[pools], milli[pools]
        of_nodes.cpus[nodes], of_nodes.memory[nodes] = self.cpus[nodes], self.memory[nodes]
        of_nodes.exclusive_jobs[nodes] = self.exclusive_jobs[nodes]
        return of_nodes

    def allocate(self, allocation: Allocation) -> None:
        self._change(allocation, -1)

    def release(self, allocation: Allocation) -> None:
        self._change(allocation, 1)

    def release_all(self, allocations: Sequence[Allocation]) -> None:
        """Release each of these, all whole GPUs at once."""
        shared = {pool for allocation in allocations if allocation.part for pool in allocation.pools}
        for allocation in allocations if shared else ():
            if not shared.isdisjoint(allocation.pools):
                self._change(allocation, 1)
        allocations = [allocation for allocation in allocations if shared.isdisjoint(allocation.pools)]
        counts = [len(allocation.pools) for allocation in allocations]
        columns = zip(*((each.pools, each.gpus, each.cpus, each.memory) for each in allocations), strict=True)
        flat = [np.fromiter(chain.from_iterable(rows), dtype=np.int64) for rows in columns]
        pools, gpus, cpus, memory = flat or [np.zeros(0, dtype=np.int64)] * 4
        nodes = self.pools.node_of[pools]
        exclusive = np.repeat(np.array([each.exclusive for each in allocations], dtype=np.int64), counts)
        known = [each.devices or ((),) * count for each, count in zip(allocations, counts, strict=True)]
        gpus = self._release_devices(pools, [*chain.from_iterable(known)], gpus)
        np.add.at(self.gpus, pools, gpus)
        np.add.at(self.cpus, nodes, cpus)
        np.add.at(self.memory, nodes, memory)
        np.subtract.at(self.exclusive_jobs, nodes, exclusive)
        self.changed_nodes.extend(nodes.tolist())

    def _release_devices(self, pools: Ints, devices: Sequence[tuple[int, ...]], gpus: Ints) -> Ints:
        """Make these whole devices idle, and return how many GPUs each row releases; of the rows of which no devices
        are known `gpus` are. What `_change_devices` does of each."""
        counts = np.fromiter(map(len, devices), dtype=np.int64, count=len(devices))
        self._uncertain.update(pools[(counts == 0) & (gpus != 0)].tolist())
        if not counts.any():
            return gpus
        of, device = np.repeat(pools, counts), np.fromiter(chain.from_iterable(devices), dtype=np.int64)
        idle = self._milli[of, device] == MILLI_PER_GPU  # others were assumed for that job
        each, times = np.unique(of * self._milli.shape[1] + device, return_counts=True)
        twice = each[times > 1] // self._milli.shape[1]
        self._uncertain.update(of[idle | (self.gpus[of] < 0)].tolist(), twice.tolist())
        self._milli[of, device] = MILLI_PER_GPU
        return np.where(counts > 0, counts, gpus)

    def fits(self, allocation: Allocation) -> bool:
        """Whether all of the allocation is free, on nodes that no job uses exclusively."""
        for pool, gpus, cpus, memory in zip(
            allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True
        ):
            node = self.pools.node_of[pool]
            if (gpus and self.gpus[pool] < gpus) or self.cpus[node] < cpus or self.memory[node] < memory:
                return False
            if self.exclusive_jobs[node] or (allocation.part and self.milli[pool].max() < allocation.part):
                return False
        return True

    def must_leave(self, wanted: Allocation, held: Iterable[tuple[Holder, Allocation]]) -> list[Holder]:
        """Return those whose allocations must be released for the wanted one, which is free without all of them; the
        first are spared first."""
        free, node_of, leaving = self.copy(), self.pools.node_of, list[Holder]()
        nodes = {int(node_of[pool]) for pool in wanted.pools}
        for holder, allocation in held:
            if nodes.isdisjoint(int(node_of[pool]) for pool in allocation.pools):
                continue
            free.allocate(allocation)
            if not free.fits(wanted):
                free.release(allocation)
                leaving.append(holder)
        return leaving

    def devices_for(self, allocation: Allocation) -> tuple[tuple[int, ...], ...]:
        """Return the positions of the devices that Slurm chooses for an allocation without devices.

        For whole GPUs these are the first idle ones; for a part the first with enough left, used or not (measured on
        Slurm 22.05, 24.11 and 26.05). None in pools with too few, and in those whose GPUs have no shards.
        """
        least, chosen = allocation.part or MILLI_PER_GPU, list[tuple[int, ...]]()
        for pool, gpus in zip(allocation.pools, allocation.gpus, strict=True):
            wanted = 1 if allocation.part else gpus
            large = np.flatnonzero(self.milli[pool] >= least)[:wanted] if self.pools.shards[pool] else ()
            chosen.append(tuple(int(device) for device in large) if len(large) == wanted else ())
        return tuple(chosen) if any(chosen) else ()

    def _change(self, allocation: Allocation, sign: int) -> None:
        for at, (pool, gpus, cpus, memory) in enumerate(
            zip(allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True)
        ):
            node = self.pools.node_of[pool]
            self.cpus[node] += sign * cpus
            self.memory[node] += sign * memory
            self.exclusive_jobs[node] -= sign * allocation.exclusive
            self.changed_nodes.append(node)
            if allocation.devices and allocation.devices[at]:
                self._change_devices(pool, allocation.devices[at], sign * (allocation.part or MILLI_PER_GPU))
            elif gpus:
                self.gpus[pool] += sign * gpus
                self._uncertain.add(pool)

    def _change_devices(self, pool: int, devices: tuple[int, ...], milli: int) -> None:
        row, whole, gained = self._milli[pool], MILLI_PER_GPU - self.pools.rounding[pool], 0
        for device in devices:
            before = row[device]
            after = before + milli
            row[device] = 0 if after < 0 else MILLI_PER_GPU if after > whole else after
            gained += int(row[device] == MILLI_PER_GPU) - int(before == MILLI_PER_GPU)
            if abs(milli) == MILLI_PER_GPU and before == row[device]:  # another device was assumed for this job
                gained += 1 if milli > 0 else -1
                self._uncertain.add(pool)
        if self.gpus[pool] < 0:  # what is released pays for what was allocated twice
            self._uncertain.add(pool)
        self.gpus[pool] += gained


def _existing(pools: Pools, chosen: Ints | slice = slice(None)) -> Mask:
    """Return where pools have a device; [pools, devices]."""
    return np.arange(max(int(pools.device_count.max(initial=1)), 1)) < pools.device_count[chosen, None]


def _whole(milli: Ints) -> Ints:
    return np.asarray((milli == MILLI_PER_GPU).sum(axis=1), dtype=np.int64)


def _with_whole(milli: Ints, existing: Mask, whole: Ints) -> Ints:
    """Return the devices with as many of them idle as `whole` says: those of lowest index begin or end to be used."""
    missing = (whole.clip(min=0) - _whole(milli))[:, None]
    used, idle = existing & (milli == 0), milli == MILLI_PER_GPU
    milli = np.where(used & (used.cumsum(axis=1) <= missing), MILLI_PER_GPU, milli)
    return np.where(idle & (idle.cumsum(axis=1) <= -missing), 0, milli)
