"""Defragmentation: the fewest running jobs whose move to other nodes lets a waiting one start, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import Job, JobState, NodeAllocation
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.placer import FgdPlacer, NodeDemands, node_demands
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.policies.stages import Situation

Mask = NDArray[np.bool_]

_MAX_SETS: Final = 20_000
"""Sets of jobs looked at on one node for each size."""
_MAX_ATTEMPTS: Final = 200
"""Sets for which other places are looked for."""
_MAX_NODES_TRIED: Final = 8
"""Other nodes that are tried for a job, best first."""


@dataclass(frozen=True, slots=True)
class Movable:
    """A running job on one node that may be moved. `cost` is what a restart takes, in GPU-seconds."""

    job: Job
    task: TaskDemand
    node: int
    devices: tuple[int, ...]
    shards: int
    cost: float


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """A job's place, and for each job that has to move its new one. `cost` in GPU-seconds."""

    allocations: tuple[NodeAllocation, ...]
    moved: tuple[tuple[Movable, tuple[NodeAllocation, ...]], ...]
    cost: float


def movable_jobs(placer: FgdPlacer, situation: Situation) -> list[Movable]:
    """The managed jobs that run on one node each, on GPUs that are known, and may be displaced."""
    position = {node.name: index for index, node in enumerate(placer.cluster.nodes)}
    found = []
    for job in situation.jobs:
        if job.state is not JobState.RUNNING or job.id in situation.non_preemptible or len(job.allocations) != 1:
            continue
        (share,) = job.allocations
        node = position.get(share.node)
        if node is None:
            continue
        try:
            (task,) = node_demands(job.original_request, int(placer.cluster.shards_per_gpu[node])).tasks
        except (PolicyError, ValueError):
            continue
        if len(share.indices) == task.gpus:
            held = TaskDemand(
                1000 * share.resources.cpus, share.resources.memory, task.gpus, task.milli_per_gpu, task.gpu_types
            )
            cost = situation.restart_cost * max(held.total_milli_gpu, 1) / 1000
            found.append(Movable(job, held, node, share.indices, share.shards, cost))
    return found


def defragment(placer: FgdPlacer, job: Job, movable: Sequence[Movable], max_moves: int) -> Defragmentation | None:
    """The fewest moves, and of equally few the cheapest, that make room for a job on one node; it and the moved jobs
    are then placed. None, and nothing changed, where no `most` moves do."""
    try:
        candidates = [(wanted, nodes) for wanted, nodes in placer.cluster.candidates(job) if len(wanted.tasks) == 1]
    except PolicyError:
        return None
    for size in range(1, max_moves + 1):
        sets = [
            (sum(mover.cost for mover in chosen), node, chosen, wanted)
            for wanted, nodes in candidates
            for node in np.flatnonzero(nodes)
            for chosen in _freeing_sets(placer, wanted.tasks[0], int(node), movable, size)
        ]
        sets.sort(key=lambda one: (one[0], one[1], [tenant.job.id for tenant in one[2]]))
        for cost, node, chosen, wanted in sets[:_MAX_ATTEMPTS]:
            found = _try_exchange(placer, wanted, int(node), chosen)
            if found is not None:
                return Defragmentation(found[0], found[1], cost)
    return None


def _freeing_sets(
    placer: FgdPlacer, task: TaskDemand, node: int, movable: Sequence[Movable], size: int
) -> Iterator[tuple[Movable, ...]]:
    """Sets of so many jobs on the node without which the task would fit there."""
    free, here = placer.cluster.free, [tenant for tenant in movable if tenant.node == node]
    if len(here) < size or not free.accepts(task)[free.type_index[node]]:
        return
    parts = np.zeros((len(here), free.milli_gpus.shape[1]), dtype=np.int64)
    for index, mover in enumerate(here):
        parts[index, list(mover.devices)] = mover.task.milli_per_gpu
    room = np.array([(tenant.task.milli_cpu, tenant.task.memory) for tenant in here], dtype=np.int64)
    have = np.array([free.milli_cpu[node], free.memory[node]])
    for chosen in islice(combinations(range(len(here)), size), _MAX_SETS):
        picked = list(chosen)
        if (have + room[picked].sum(axis=0) < (task.milli_cpu, task.memory)).any():
            continue
        devices = free.milli_gpus[node] + parts[picked].sum(axis=0)
        if not task.gpus or (devices >= task.milli_per_gpu).sum() >= task.gpus:
            yield tuple(here[place] for place in picked)


def _try_exchange(
    placer: FgdPlacer, demands: NodeDemands, node: int, leaving: Sequence[Movable]
) -> tuple[tuple[NodeAllocation, ...], tuple[tuple[Movable, tuple[NodeAllocation, ...]], ...]] | None:
    """The job in their place, and they elsewhere; None, and all as it was, where one of them has no other place."""
    free, (task,) = placer.cluster.free, demands.tasks
    for mover in leaving:
        free.release(node, mover.task, mover.devices)
    devices = placer.table.select_devices(task, node)
    free.allocate(node, task, devices)
    moved = _place_elsewhere(placer, sorted(leaving, key=lambda tenant: -tenant.task.total_milli_gpu), node)
    if moved is None:
        free.release(node, task, devices)
        for mover in leaving:
            free.allocate(node, mover.task, mover.devices)
        return None
    return (placer.node_allocation(demands.shards, node, task, devices),), moved


def _place_elsewhere(
    placer: FgdPlacer, leaving: Sequence[Movable], node: int
) -> tuple[tuple[Movable, tuple[NodeAllocation, ...]], ...] | None:
    """A place on another node for each, the best that leaves one for all."""
    if not leaving:
        return ()
    first, free = leaving[0], placer.cluster.free
    for wanted, nodes in placer.cluster.candidates(first.job):
        (task,) = wanted.tasks
        row = np.where(nodes, placer.table.scores_of(task), -np.inf)
        row[node] = -np.inf
        for other in np.argsort(-row, kind="stable")[:_MAX_NODES_TRIED]:
            if row[other] == -np.inf:
                break
            devices = placer.table.select_devices(task, int(other))
            free.allocate(int(other), task, devices)
            rest = _place_elsewhere(placer, leaving[1:], node)
            if rest is not None:
                return ((first, (placer.node_allocation(wanted.shards, int(other), task, devices),)), *rest)
            free.release(int(other), task, devices)
    return None
