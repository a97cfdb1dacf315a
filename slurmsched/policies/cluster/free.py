"""Free resources of every node, as vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import Job, Snapshot
from slurmsched.policies.cluster.pools import Allocation, Pools


@dataclass(slots=True)
class FreeResources:
    """Free GPUs by pool, and by node the free CPUs, the free MiB and the number of jobs with exclusive use.

    A negative amount is allocated twice: nothing fits there until something is released.
    """

    pools: Pools
    gpus: Ints
    cpus: Ints
    memory: Ints
    exclusive_jobs: Ints

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> FreeResources:
        """Return the free resources of a snapshot: GPUs that are entirely idle, unallocated CPUs and memory."""
        free = cls.of_empty_cluster(Pools(snapshot.nodes))
        pools = free.pools
        for pool, gpu_type in enumerate(pools.gpu_types):
            free.gpus[pool] = sum(gpu.idle and gpu.type == gpu_type for gpu in pools.node(pool).gpus)
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
        types = enumerate(pools.gpu_types)
        gpus = [sum(gpu.type == gpu_type for gpu in pools.node(pool).gpus) for pool, gpu_type in types]
        return cls(
            pools,
            np.array(gpus, dtype=np.int64),
            pools.cpus.copy(),
            pools.memory.copy(),
            np.zeros(len(pools.nodes), dtype=np.int64),
        )

    @classmethod
    def none(cls, pools: Pools) -> FreeResources:
        """Return nothing free: the start of a sum."""
        by_pool, by_node = np.zeros(len(pools), dtype=np.int64), np.zeros(len(pools.nodes), dtype=np.int64)
        return cls(pools, by_pool, by_node, by_node.copy(), by_node.copy())

    def copy(self) -> FreeResources:
        return FreeResources(
            self.pools, self.gpus.copy(), self.cpus.copy(), self.memory.copy(), self.exclusive_jobs.copy()
        )

    def plus(self, more: FreeResources) -> FreeResources:
        """Return the sum of both."""
        return FreeResources(
            self.pools,
            self.gpus + more.gpus,
            self.cpus + more.cpus,
            self.memory + more.memory,
            self.exclusive_jobs + more.exclusive_jobs,
        )

    def intersection(self, other: FreeResources) -> FreeResources:
        """Return what is free in both."""
        return FreeResources(
            self.pools,
            np.minimum(self.gpus, other.gpus),
            np.minimum(self.cpus, other.cpus),
            np.minimum(self.memory, other.memory),
            np.maximum(self.exclusive_jobs, other.exclusive_jobs),
        )

    def allocate(self, allocation: Allocation) -> None:
        self._change(allocation, -1)

    def release(self, allocation: Allocation) -> None:
        self._change(allocation, 1)

    def fits(self, allocation: Allocation) -> bool:
        """Whether all of the allocation is free, on nodes that no job uses exclusively."""
        return all(
            self.gpus[pool] >= gpus
            and self.cpus[node := self.pools.node_of[pool]] >= cpus
            and self.memory[node] >= memory
            and not self.exclusive_jobs[node]
            for pool, gpus, cpus, memory in zip(
                allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True
            )
        )

    def _change(self, allocation: Allocation, sign: int) -> None:
        for pool, gpus, cpus, memory in zip(
            allocation.pools, allocation.gpus, allocation.cpus, allocation.memory, strict=True
        ):
            node = self.pools.node_of[pool]
            self.gpus[pool] += sign * gpus
            self.cpus[node] += sign * cpus
            self.memory[node] += sign * memory
            self.exclusive_jobs[node] -= sign * allocation.exclusive


def managed_gpus(snapshot: Snapshot, jobs: Iterable[Job], open_nodes: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return by type, in alphabetical order, the GPUs that are idle on open nodes or allocated to these jobs."""
    names = frozenset[str]().union(*open_nodes.values())
    counts = dict.fromkeys(sorted({gpu.type for node in snapshot.nodes for gpu in node.gpus}), 0)
    for node in snapshot.nodes:
        for gpu in node.gpus if node.name in names else ():
            counts[gpu.type] += gpu.idle
    for job in jobs:
        for on_node in job.allocations:
            if on_node.gpu_type in counts:
                counts[on_node.gpu_type] += on_node.resources.gpus
    return counts
