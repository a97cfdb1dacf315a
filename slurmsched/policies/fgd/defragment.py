"""Defragmentation: the fewest moves of running jobs to other nodes that let a waiting job start, and their cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

import numpy as np

from slurmsched.model import Job, JobState, NodeAllocation
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.placer import FgdPlacer, NodeDemands, node_demands
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.policies.stages import Situation

_MAX_SETS: Final = 20_000
"""Most sets of jobs of one size considered on a node."""
_MAX_ATTEMPTS: Final = 200
"""Most sets of one size for which other nodes are searched."""
_MAX_NODES_TRIED: Final = 8
"""Most other nodes tried for a job, best first."""


@dataclass(frozen=True, slots=True)
class Movable:
    """A running job on one node that may be moved. `cost` is what its restart costs, in GPU-seconds."""

    job: Job
    task: TaskDemand
    node: int
    devices: tuple[int, ...]
    shards: int
    cost: float


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """The allocation of a waiting job, and the new one of each job that moves for it. `cost` is in GPU-seconds."""

    allocations: tuple[NodeAllocation, ...]
    moved: tuple[tuple[Movable, tuple[NodeAllocation, ...]], ...]
    cost: float


def movable_jobs(placer: FgdPlacer, situation: Situation) -> list[Movable]:
    """Return the managed running jobs that may be moved: each on one node, on GPUs whose indices are known."""
    position = {node.name: index for index, node in enumerate(placer.cluster.nodes)}
    movable = []
    for job in situation.jobs:
        if job.state is not JobState.RUNNING or job.id in situation.non_preemptible or len(job.allocations) != 1:
            continue
        (allocation,) = job.allocations
        node = position.get(allocation.node)
        if node is None:
            continue
        try:
            (task,) = node_demands(job.original_request, int(placer.cluster.shards_per_gpu[node])).tasks
        except (PolicyError, ValueError):
            continue
        if len(allocation.indices) == task.gpus:
            cpus, memory = allocation.resources.cpus, allocation.resources.memory
            held = TaskDemand(1000 * cpus, memory, task.gpus, task.milli_per_gpu, task.gpu_types)
            cost = situation.restart_cost * max(held.total_milli_gpu, 1) / 1000
            movable.append(Movable(job, held, node, allocation.indices, allocation.shards, cost))
    return movable


def defragment(placer: FgdPlacer, job: Job, movable: Sequence[Movable], max_moves: int) -> Defragmentation | None:
    """Allocate a job on one node by the fewest moves of other jobs, and of equally few by the cheapest.

    Returns None and changes nothing if `max_moves` moves do not suffice.
    """
    try:
        candidates = [(demands, nodes) for demands, nodes in placer.cluster.candidates(job) if len(demands.tasks) == 1]
    except PolicyError:
        return None
    for size in range(1, max_moves + 1):
        sets = [
            (sum(leaving.cost for leaving in chosen), node, chosen, demands)
            for demands, nodes in candidates
            for node in np.flatnonzero(nodes)
            for chosen in _freeing_sets(placer, demands.tasks[0], int(node), movable, size)
        ]
        sets.sort(key=lambda entry: (entry[0], entry[1], [leaving.job.id for leaving in entry[2]]))
        for cost, node, chosen, demands in sets[:_MAX_ATTEMPTS]:
            exchange = _try_exchange(placer, demands, int(node), chosen)
            if exchange is not None:
                return Defragmentation(*exchange, cost)
    return None


def _freeing_sets(
    placer: FgdPlacer, task: TaskDemand, node: int, movable: Sequence[Movable], size: int
) -> Iterator[tuple[Movable, ...]]:
    """Yield sets of `size` jobs on the node without which the task fits there."""
    free, on_node = placer.cluster.free, [other for other in movable if other.node == node]
    if len(on_node) < size or not free.accepts(task)[free.type_index[node]]:
        return
    parts = np.zeros((len(on_node), free.milli_gpus.shape[1]), dtype=np.int64)
    for index, other in enumerate(on_node):
        parts[index, list(other.devices)] = other.task.milli_per_gpu
    held = np.array([(other.task.milli_cpu, other.task.memory) for other in on_node], dtype=np.int64)
    idle = np.array([free.milli_cpu[node], free.memory[node]])
    for combination in islice(combinations(range(len(on_node)), size), _MAX_SETS):
        indices = list(combination)
        if (idle + held[indices].sum(axis=0) < (task.milli_cpu, task.memory)).any():
            continue
        devices = free.milli_gpus[node] + parts[indices].sum(axis=0)
        if not task.gpus or (devices >= task.milli_per_gpu).sum() >= task.gpus:
            yield tuple(on_node[index] for index in indices)


def _try_exchange(
    placer: FgdPlacer, demands: NodeDemands, node: int, leaving: Sequence[Movable]
) -> tuple[tuple[NodeAllocation, ...], tuple[tuple[Movable, tuple[NodeAllocation, ...]], ...]] | None:
    """Allocate the job on the node and the leaving jobs elsewhere, and return both; None, and nothing changed, if one
    of them fits nowhere else."""
    free, (task,) = placer.cluster.free, demands.tasks
    for other in leaving:
        free.release(node, other.task, other.devices)
    devices = placer.table.select_devices(task, node)
    free.allocate(node, task, devices)
    moved = _place_elsewhere(placer, sorted(leaving, key=lambda other: -other.task.total_milli_gpu), node)
    if moved is None:
        free.release(node, task, devices)
        for other in leaving:
            free.allocate(node, other.task, other.devices)
        return None
    return (placer.node_allocation(demands.shards, node, task, devices),), moved


def _place_elsewhere(
    placer: FgdPlacer, leaving: Sequence[Movable], node: int
) -> tuple[tuple[Movable, tuple[NodeAllocation, ...]], ...] | None:
    """Allocate each job on another node, the best that leaves one for the others; None if there is no such node."""
    if not leaving:
        return ()
    first, free = leaving[0], placer.cluster.free
    for demands, nodes in placer.cluster.candidates(first.job):
        (task,) = demands.tasks
        row = np.where(nodes, placer.table.scores_of(task), -np.inf)
        row[node] = -np.inf
        for other in np.argsort(-row, kind="stable")[:_MAX_NODES_TRIED]:
            if row[other] == -np.inf:
                break
            devices = placer.table.select_devices(task, int(other))
            free.allocate(int(other), task, devices)
            rest = _place_elsewhere(placer, leaving[1:], node)
            if rest is not None:
                return ((first, (placer.node_allocation(demands.shards, int(other), task, devices),)), *rest)
            free.release(int(other), task, devices)
    return None
