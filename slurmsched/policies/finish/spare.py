"""Distributes the resources that are spare once every job had its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from slurmsched.model import JobId
from slurmsched.policies.cluster.resources import Allocation, PoolKind
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources, proportional_size, size_upgrades


def distribute_spare(session: Session) -> None:
    """Give the jobs placed this round more than their least, step by step to the job that gains most.

    The gain is the speed, weighted by GPUs, over the fraction of a node that the step takes. What makes no job faster
    stays free for the next newcomer, and so does the share of idle GPUs, except from jobs that can give it back.
    """
    heap = [step for job in session.placements if (step := _best_step(session, job)) is not None]
    heapify(heap)
    while heap:
        _, _, job, larger = heappop(heap)
        extra = extra_resources(larger.allocation(session.pools), session.placements[job].allocation(session.pools))
        enlarged = session.enlarge(job, larger, extra)
        step = _best_step(session, job)
        if step is not None and (enlarged or step[3] != larger):  # the same step would be refused again
            heappush(heap, step)


_Step = tuple[float, int, JobId, Placement]
"""Negative gain (so that the largest comes first), rank, job, and its larger placement."""


def _best_step(session: Session, job: JobId) -> _Step | None:
    """Return the step with the largest gain for this job, of those that fit; None if there is none."""
    current = session.placements[job]
    kind = session.pools.kinds[current.kind]
    if current.gang.request.exclusive or not current.gang.gpus_per_part:
        return None
    limit = largest_that_fits(session, job, current)
    steps = size_upgrades(session.sizing, current.gang, kind, current.per_task, limit)
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


def largest_that_fits(session: Session, job: JobId, current: Placement, *, counted: bool = True) -> PerTaskResources:
    """Return the largest size of a part that fits on every node of the placement, and that the job's limits allow. What
    is beyond a part's own share leaves idle GPUs theirs, unless the job can give it back. Unless `counted`, nothing is
    allocated to the placement yet."""
    has = current.allocation(session.pools)
    largest = _largest(session, current, has, [(0, 0)] * len(has.pools), counted=counted)
    if not session.lends_to(job):
        taken = [0] * len(has.pools) if counted else has.gpus
        idle = [session.share_of_idle(pool, gpus) for pool, gpus in zip(has.pools, taken, strict=True)]
        left = _largest(session, current, has, idle, counted=counted)
        own = proportional_size(current.gang, session.pools.kinds[current.kind])
        largest = PerTaskResources(
            min(largest.cpus, max(left.cpus, own.cpus)), min(largest.memory, max(left.memory, own.memory))
        )
    most = session.demands.of(session.jobs[job]).ranges[current.kind].most or largest
    return PerTaskResources(
        max(current.per_task.cpus, min(largest.cpus, most.cpus)),
        max(current.per_task.memory, min(largest.memory, most.memory)),
    )


def _largest(
    session: Session, current: Placement, has: Allocation, kept: Sequence[tuple[int, int]], *, counted: bool
) -> PerTaskResources:
    """Return the largest size of a part if these CPUs and MiB stay free on the nodes of its pools; `has` is what the
    placement comes to."""
    nodes = [int(session.pools.node_of[pool]) for pool in current.pools]
    free = [
        (
            max(0, int(session.free_at_minimum.cpus[node]) - cpus),
            max(0, int(session.free_at_minimum.memory[node]) - memory),
        )
        for node, (cpus, memory) in zip(nodes, kept, strict=True)
    ]
    gang, most_parts = current.gang, max(current.parts)
    units = [session.pools.kind(pool).cpu_units(gang.request.threads_per_core) for pool in current.pools]
    cpus = min(
        of.within(more + held * counted) // parts // gang.tasks_per_part * gang.tasks_per_part
        for of, (more, _), held, parts in zip(units, free, has.cpus, current.parts, strict=True)
    )
    held_memory = max(gang.memory_per_node, current.per_task.memory * most_parts) if counted else 0
    on_node = held_memory + min(memory for _, memory in free)
    return PerTaskResources(max(current.per_task.cpus, cpus), max(current.per_task.memory, on_node // most_parts))


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
