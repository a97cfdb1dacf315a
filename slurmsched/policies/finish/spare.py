"""Distributes what is spare once every job had its turn."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

from slurmsched.model import JobId
from slurmsched.policies.cluster.pools import Allocation, PoolKind
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources, memory_on_node


def distribute_spare(session: Session) -> None:
    """Give the jobs placed this round more than their least, step by step to whoever gains most speed for it.

    Speed counts by GPUs against the part of a node that the step takes, so a node's spare CPUs go where they bring
    most. Nobody gets what does not make it faster: that stays for the next newcomer.
    """
    heap = [step for job in session.placements if (step := _best_step(session, job)) is not None]
    heapify(heap)
    while heap:
        _, _, job, larger = heappop(heap)
        extra = extra_resources(larger.allocation(session.pools), session.placements[job].allocation(session.pools))
        if session.free_at_minimum.fits(extra):
            session.free_at_minimum.allocate(extra)
            session.placements[job] = larger
        if (step := _best_step(session, job)) is not None:
            heappush(heap, step)


_Step = tuple[float, int, JobId, Placement]
"""Gain (negative, so that the largest comes first), place in the order, the job and what it would have."""


def _best_step(session: Session, job: JobId) -> _Step | None:
    """The step that brings this job most, of those there is room for."""
    current = session.placements[job]
    kind = session.pools.kinds[current.kind]
    if current.gang.request.exclusive:
        return None
    steps = session.sizing.upgrades(current.gang, kind, current.per_task, largest_that_fits(session, current))
    gains = (
        (
            -faster
            * sum(current.parts)
            * current.gang.gpus_per_part
            / _fraction_of_node(current.per_task, per_task, kind),
            per_task,
        )
        for per_task, faster in steps
    )
    best = min(gains, default=None, key=lambda gain: gain[0])
    return best and (best[0], session.rank_of[job], job, replace(current, per_task=best[1]))


def _fraction_of_node(current: PerTaskResources, larger: PerTaskResources, kind: PoolKind) -> float:
    """How much of a node a part would take more, CPUs and memory together."""
    return (larger.cpus - current.cpus) / kind.cpus + (larger.memory - current.memory) / max(kind.memory, 1)


def largest_that_fits(session: Session, current: Placement) -> PerTaskResources:
    """The largest portion there is room for on every node of the place."""
    nodes = [int(session.pools.node_of[pool]) for pool in current.pools]
    free = [
        (max(0, int(session.free_at_minimum.cpus[node])), max(0, int(session.free_at_minimum.memory[node])))
        for node in nodes
    ]
    tasks, widest = current.gang.tasks_per_part, max(current.parts)
    cpus = min(cpus // parts // tasks * tasks for (cpus, _), parts in zip(free, current.parts, strict=True))
    on_node = memory_on_node(current.gang, current.per_task, widest) + min(memory for _, memory in free)
    return PerTaskResources(current.per_task.cpus + cpus, max(current.per_task.memory, on_node // widest))


def extra_resources(larger: Allocation, smaller: Allocation) -> Allocation:
    """CPUs and memory that one claim takes beyond another on the same GPUs."""
    return replace(
        larger,
        gpus=(0,) * len(larger.pools),
        cpus=tuple(a - b for a, b in zip(larger.cpus, smaller.cpus, strict=True)),
        memory=tuple(a - b for a, b in zip(larger.memory, smaller.memory, strict=True)),
    )
