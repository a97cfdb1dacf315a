"""Distributes the resources that are spare once every job had its turn."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

from slurmsched.model import JobId
from slurmsched.policies.cluster.resources import Allocation, PoolKind
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources, memory_on_node


def distribute_spare(session: Session) -> None:
    """Give the jobs placed this round more than their least, step by step to the job that gains most.

    The gain is the speed, weighted by GPUs, over the fraction of a node that the step takes. What makes no job faster
    stays free for the next newcomer.
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
"""Negative gain (so that the largest comes first), rank, job, and its larger placement."""


def _best_step(session: Session, job: JobId) -> _Step | None:
    """Return the step with the largest gain for this job, of those that fit; None if there is none."""
    current = session.placements[job]
    kind = session.pools.kinds[current.kind]
    if current.gang.request.exclusive or not current.gang.gpus_per_part:
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
    """Return the additional fraction of a node per part: that of CPUs plus that of memory."""
    return (larger.cpus - current.cpus) / kind.cpus + (larger.memory - current.memory) / max(kind.memory, 1)


def largest_that_fits(session: Session, current: Placement) -> PerTaskResources:
    """Return the largest size of a part that fits on every node of the placement."""
    nodes = [int(session.pools.node_of[pool]) for pool in current.pools]
    free = [
        (max(0, int(session.free_at_minimum.cpus[node])), max(0, int(session.free_at_minimum.memory[node])))
        for node in nodes
    ]
    tasks, most_parts = current.gang.tasks_per_part, max(current.parts)
    cpus = min(cpus // parts // tasks * tasks for (cpus, _), parts in zip(free, current.parts, strict=True))
    on_node = memory_on_node(current.gang, current.per_task, most_parts) + min(memory for _, memory in free)
    return PerTaskResources(current.per_task.cpus + cpus, max(current.per_task.memory, on_node // most_parts))


def extra_resources(larger: Allocation, smaller: Allocation) -> Allocation:
    """Return the CPUs and memory that an allocation takes beyond a smaller one on the same GPUs."""
    return replace(
        larger,
        part=0,
        devices=(),
        gpus=(0,) * len(larger.pools),
        cpus=tuple(a - b for a, b in zip(larger.cpus, smaller.cpus, strict=True)),
        memory=tuple(a - b for a, b in zip(larger.memory, smaller.memory, strict=True)),
    )
