"""Which nodes work on which job in the coming round, and how many steps each does.

Every job has a copy for every node, so a job may use any of them, and all of them together are as fast as the sum. Then
the least mean completion time is that of the job that ends soonest going first, on all nodes; a job that can end in
this round gets only the nodes it needs for that (the last of all the fastest, the paper's beta), and the next job the
others. Nodes that nobody needs so help whoever ends last, and none is idle while any job has a step for it (theorem 3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurmsched.policies.hadare.dispatching import dispatched

__all__ = ["Forked", "shared"]


@dataclass(frozen=True, slots=True)
class Forked:
    """A job with `left` steps; `rates`: steps per second of a copy on each node, 0.0 where it cannot run."""

    job: str
    left: int
    rates: tuple[float, ...]


def shared(jobs: Sequence[Forked], slot: float) -> Mapping[str, Mapping[int, int]]:
    """By job the steps of each of its nodes. `slot` is the seconds of a round in which there is work done."""
    queue = sorted((job for job in jobs if job.left and any(job.rates)), key=lambda job: job.left / sum(job.rates))
    nodes: dict[str, list[int]] = {}
    free = set(range(max((len(job.rates) for job in queue), default=0)))
    for job in queue:
        nodes[job.job] = _enough(job, free, slot, alone=job is queue[-1])
        free.difference_update(nodes[job.job])
    for node in sorted(free):
        helped = [job for job in queue if _helps(job, nodes[job.job], node)]
        if helped:
            nodes[max(helped, key=lambda job: _seconds(job, nodes[job.job])).job].append(node)
    return {job.job: _portions(job, nodes[job.job]) for job in queue if nodes[job.job]}


def _enough(job: Forked, free: Collection[int], slot: float, *, alone: bool) -> list[int]:
    """The nodes on which the job ends in this round: the slowest that does it by itself, so that those behind have the
    faster ones, else the fewest fastest; all that are free where it does not end."""
    by_rate = sorted((node for node in free if job.rates[node] > 0), key=lambda node: (-job.rates[node], node))
    by_itself = [node for node in reversed(by_rate) if not alone and _seconds(job, [node]) <= slot]
    if by_itself:
        return by_itself[:1]
    taken: list[int] = []
    for node in by_rate:
        if _seconds(job, taken) > slot and _helps(job, taken, node):
            taken.append(node)
    return taken


def _seconds(job: Forked, nodes: Sequence[int]) -> float:
    """Until the job ends on these nodes."""
    portions = _portions(job, nodes)
    return max((steps / job.rates[node] for node, steps in portions.items()), default=float("inf"))


def _helps(job: Forked, nodes: Sequence[int], node: int) -> bool:
    """Whether a node more would get a step of this job, and leave one to each of the others."""
    portions = _portions(job, [*nodes, node]) if job.rates[node] > 0 else {}
    return len(portions) > len(nodes)


def _portions(job: Forked, nodes: Sequence[int]) -> dict[int, int]:
    steps = dispatched(job.left, [job.rates[node] for node in nodes]) if nodes else ()
    return {node: count for node, count in zip(nodes, steps, strict=True) if count}
