"""Handing out what is spare once everybody has a place."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

from slurmsched.model import JobId
from slurmsched.policies.allocating import Portion
from slurmsched.policies.allocating.portion import memory_on_node
from slurmsched.policies.draft import Draft
from slurmsched.policies.placing import Placement
from slurmsched.policies.pools import Claim, Kind

__all__ = ["difference", "grow", "most_there_is_room_for"]


def grow(draft: Draft) -> None:
    """Give the jobs placed this round more than their least, step by step to whoever gains most speed for it.

    Speed counts by GPUs against the part of a node that the step takes, so a node's spare CPUs go where they bring
    most. Nobody gets what does not make it faster: that stays for the next newcomer.
    """
    heap = [step for job in draft.placed if (step := _next(draft, job)) is not None]
    heapify(heap)
    while heap:
        _, _, job, larger = heappop(heap)
        extra = difference(larger.claim(draft.pools), draft.placed[job].claim(draft.pools))
        if draft.tight.holds(extra):
            draft.tight.claim(extra)
            draft.placed[job] = larger
        if (step := _next(draft, job)) is not None:
            heappush(heap, step)


_Step = tuple[float, int, JobId, Placement]
"""Gain (negative, so that the largest comes first), place in the order, the job and what it would have."""


def _next(draft: Draft, job: JobId) -> _Step | None:
    """The step that brings this job most, of those there is room for."""
    have = draft.placed[job]
    kind = draft.pools.kinds[have.kind]
    if have.gang.request.exclusive:
        return None
    steps = draft.allocating.larger(have.gang, kind, have.portion, most_there_is_room_for(draft, have))
    gains = (
        (-faster * sum(have.parts) * have.gang.gpus / _part_of_node(have.portion, portion, kind), portion)
        for portion, faster in steps
    )
    best = min(gains, default=None, key=lambda gain: gain[0])
    return best and (best[0], draft.position[job], job, replace(have, portion=best[1]))


def _part_of_node(have: Portion, larger: Portion, kind: Kind) -> float:
    """How much of a node a part would take more, CPUs and memory together."""
    return (larger.cpus - have.cpus) / kind.cpus + (larger.memory - have.memory) / max(kind.memory, 1)


def most_there_is_room_for(draft: Draft, have: Placement) -> Portion:
    """The largest portion there is room for on every node of the place."""
    nodes = [int(draft.pools.node_of[pool]) for pool in have.pools]
    free = [(max(0, int(draft.tight.cpus[node])), max(0, int(draft.tight.memory[node]))) for node in nodes]
    tasks, widest = have.gang.tasks, max(have.parts)
    cpus = min(cpus // parts // tasks * tasks for (cpus, _), parts in zip(free, have.parts, strict=True))
    on_node = memory_on_node(have.gang, have.portion, widest) + min(memory for _, memory in free)
    return Portion(have.portion.cpus + cpus, max(have.portion.memory, on_node // widest))


def difference(larger: Claim, smaller: Claim) -> Claim:
    """CPUs and memory that one claim takes beyond another on the same GPUs."""
    return replace(
        larger,
        gpus=(0,) * len(larger.pools),
        cpus=tuple(a - b for a, b in zip(larger.cpus, smaller.cpus, strict=True)),
        memory=tuple(a - b for a, b in zip(larger.memory, smaller.memory, strict=True)),
    )
