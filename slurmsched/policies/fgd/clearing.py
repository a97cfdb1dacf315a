"""Defragmentation: the fewest running jobs whose move to other nodes lets a waiting one start, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import Job, JobState, Share
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.asking import Asking, asking
from slurmsched.policies.fgd.seating import Seats
from slurmsched.policies.placing.fragmentation import Task
from slurmsched.policies.protocol import Situation

__all__ = ["Clearing", "Tenant", "cleared", "tenants"]

Mask = NDArray[np.bool_]

_SETS: Final = 20_000
"""Sets of jobs looked at on one node for each size."""
_ATTEMPTS: Final = 200
"""Sets for which other places are looked for."""
_PLACES: Final = 8
"""Other nodes that are tried for a job, best first."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A running job on one node that may be moved. `cost` is what a restart takes, in GPU-seconds."""

    job: Job
    task: Task
    node: int
    devices: tuple[int, ...]
    shards: int
    cost: float


@dataclass(frozen=True, slots=True)
class Clearing:
    """A job's place, and for each job that has to move its new one. `cost` in GPU-seconds."""

    shares: tuple[Share, ...]
    moved: tuple[tuple[Tenant, tuple[Share, ...]], ...]
    cost: float


def tenants(seats: Seats, situation: Situation) -> list[Tenant]:
    """The managed jobs that run on one node each, on GPUs that are known, and may be displaced."""
    position = {node.name: place for place, node in enumerate(seats.cluster.nodes)}
    found = []
    for job in situation.jobs:
        if job.state is not JobState.RUNNING or job.id in situation.fixed or len(job.shares) != 1:
            continue
        (share,) = job.shares
        node = position.get(share.node)
        if node is None:
            continue
        try:
            (task,) = asking(job.request, int(seats.cluster.shards[node])).tasks
        except (PolicyError, ValueError):
            continue
        if len(share.indices) == task.gpus:
            own = Task(1000 * share.resources.cpus, share.resources.memory, task.gpus, task.milli, task.types)
            cost = situation.restart_cost * max(own.demand, 1) / 1000
            found.append(Tenant(job, own, node, share.indices, share.shards, cost))
    return found


def cleared(seats: Seats, job: Job, movable: Sequence[Tenant], most: int) -> Clearing | None:
    """The fewest moves, and of equally few the cheapest, that make room for a job on one node; it and the moved jobs
    are then placed. None, and nothing changed, where no `most` moves do."""
    try:
        homes = [(wanted, nodes) for wanted, nodes in seats.cluster.homes(job) if len(wanted.tasks) == 1]
    except PolicyError:
        return None
    for size in range(1, most + 1):
        sets = [
            (sum(tenant.cost for tenant in chosen), node, chosen, wanted)
            for wanted, nodes in homes
            for node in np.flatnonzero(nodes)
            for chosen in _making_room(seats, wanted.tasks[0], int(node), movable, size)
        ]
        sets.sort(key=lambda one: (one[0], one[1], [tenant.job.id for tenant in one[2]]))
        for cost, node, chosen, wanted in sets[:_ATTEMPTS]:
            found = _exchanged(seats, wanted, int(node), chosen)
            if found is not None:
                return Clearing(found[0], found[1], cost)
    return None


def _making_room(
    seats: Seats, task: Task, node: int, movable: Sequence[Tenant], size: int
) -> Iterator[tuple[Tenant, ...]]:
    """Sets of so many jobs on the node without which the task would fit there."""
    idle, here = seats.cluster.idle, [tenant for tenant in movable if tenant.node == node]
    if len(here) < size or not idle.accepts(task)[idle.kind[node]]:
        return
    parts = np.zeros((len(here), idle.gpus.shape[1]), dtype=np.int64)
    for place, tenant in enumerate(here):
        parts[place, list(tenant.devices)] = tenant.task.milli
    room = np.array([(tenant.task.cpu, tenant.task.memory) for tenant in here], dtype=np.int64)
    have = np.array([idle.cpu[node], idle.memory[node]])
    for chosen in islice(combinations(range(len(here)), size), _SETS):
        picked = list(chosen)
        if (have + room[picked].sum(axis=0) < (task.cpu, task.memory)).any():
            continue
        devices = idle.gpus[node] + parts[picked].sum(axis=0)
        if not task.gpus or (devices >= task.milli).sum() >= task.gpus:
            yield tuple(here[place] for place in picked)


def _exchanged(
    seats: Seats, wanted: Asking, node: int, leaving: Sequence[Tenant]
) -> tuple[tuple[Share, ...], tuple[tuple[Tenant, tuple[Share, ...]], ...]] | None:
    """The job in their place, and they elsewhere; None, and all as it was, where one of them has no other place."""
    idle, (task,) = seats.cluster.idle, wanted.tasks
    for tenant in leaving:
        idle.give(node, tenant.task, tenant.devices)
    devices = seats.scores.devices(task, node)
    idle.take(node, task, devices)
    moved = _elsewhere(seats, sorted(leaving, key=lambda tenant: -tenant.task.demand), node)
    if moved is None:
        idle.give(node, task, devices)
        for tenant in leaving:
            idle.take(node, tenant.task, tenant.devices)
        return None
    return (seats.share(wanted.shards, node, task, devices),), moved


def _elsewhere(
    seats: Seats, leaving: Sequence[Tenant], node: int
) -> tuple[tuple[Tenant, tuple[Share, ...]], ...] | None:
    """A place on another node for each, the best that leaves one for all."""
    if not leaving:
        return ()
    first, idle = leaving[0], seats.cluster.idle
    for wanted, nodes in seats.cluster.homes(first.job):
        (task,) = wanted.tasks
        row = np.where(nodes, seats.scores.row(task), -np.inf)
        row[node] = -np.inf
        for other in np.argsort(-row, kind="stable")[:_PLACES]:
            if row[other] == -np.inf:
                break
            devices = seats.scores.devices(task, int(other))
            idle.take(int(other), task, devices)
            rest = _elsewhere(seats, leaving[1:], node)
            if rest is not None:
                return ((first, (seats.share(wanted.shards, int(other), task, devices),)), *rest)
            idle.give(int(other), task, devices)
    return None
