"""Makes Slurm follow our order by the nice of pending jobs, and our placement by the weights of nodes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from slurmsched.model import (
    Decision,
    Hold,
    Job,
    JobId,
    JobState,
    Node,
    NodeState,
    Operation,
    Reason,
    ReasonCode,
    SchedulerState,
    Snapshot,
    Verb,
)

_PRIORITY_GAP: Final = 100
"""Priority difference between two changed jobs, so that a later job fits between them."""

_MAX_BOOST: Final = 10 * _PRIORITY_GAP
"""How far a job's priority may be above the highest one that Slurm itself assigned."""


def nice_operations(snapshot: Snapshot, decision: Decision, state: SchedulerState, order: str) -> Iterator[Operation]:
    """Yield a new nice for as few pending jobs as needed to bring their priorities into the order of the decision.

    Ranks are grouped into buckets that grow down the queue; within a bucket Slurm's order is kept. The longest
    subsequence that is already in order keeps its nice, the other jobs are put between. Held jobs are left out.
    """
    ranked = [(rank, snapshot.jobs_by_id.get(entry.job)) for rank, entry in enumerate(decision.order, 1)]
    waiting = [(rank, job) for rank, job in ranked if job is not None and _is_queued(job)]
    waiting.sort(key=lambda entry: (_bucket(entry[0]), -entry[1].priority))
    wanted = _target_priorities([job for _, job in waiting], state)
    for rank, job in waiting:
        nice = job.nice + job.priority - wanted[job.id]
        if nice != job.nice:
            yield Operation(
                Verb.PRIORITIZE, job.id, Reason(ReasonCode.RANK, {"rank": rank, "order": order}), job.nice, nice
            )


def _is_queued(job: Job) -> bool:
    return job.state is JobState.PENDING and job.hold is Hold.NONE and job.priority > 0


def _bucket(rank: int) -> int:
    """Ranks 1 to 4 stand alone; then come 5-6, 7-8, 9-12, 13-16, 17-24, ..."""
    octave = (rank - 1).bit_length()
    return 2 * octave + (4 * rank > 3 << octave)


def _target_priorities(jobs: Sequence[Job], state: SchedulerState) -> dict[JobId, int]:
    """A priority per job, falling in the given order: most unchanged, or all new if a job would exceed _MAX_BOOST."""
    natural = [job.priority + job.nice - state.nices.get(job.id, job.nice) for job in jobs]
    top = max((*natural, _PRIORITY_GAP * len(jobs)), default=0)
    wanted = _falling_priorities(jobs, _longest_falling(jobs), top)
    return wanted if not jobs or wanted[jobs[0].id] <= top + _MAX_BOOST else _falling_priorities(jobs, frozenset(), top)


def _falling_priorities(jobs: Sequence[Job], kept: frozenset[JobId], top: int) -> dict[JobId, int]:
    """Strictly falling priorities, 1 at least; the kept jobs keep theirs where possible."""
    wanted, above = dict[JobId, int](), None
    for job, (below, gaps) in zip(jobs, _next_kept(jobs, kept), strict=True):
        if job.id in kept and (above is None or job.priority < above):
            above = job.priority
        elif above is None:
            above = top if below is None else below + _PRIORITY_GAP * gaps
        else:
            step = _PRIORITY_GAP if below is None else min(_PRIORITY_GAP, (above - below) // (gaps + 1))
            above = max(1, above - max(1, step))
        wanted[job.id] = above
    return wanted


def _next_kept(jobs: Sequence[Job], kept: frozenset[JobId]) -> list[tuple[int | None, int]]:
    """For each job the priority of the next one that keeps its own (None if none does), and its distance in jobs."""
    gaps_below: list[tuple[int | None, int]] = []
    below: int | None = None
    distance = 0
    for job in reversed(jobs):
        distance += 1
        gaps_below.append((below, distance))
        if job.id in kept:
            below, distance = job.priority, 0
    return gaps_below[::-1]


def _longest_falling(jobs: Sequence[Job]) -> frozenset[JobId]:
    """The longest subsequence whose priorities already fall strictly (patience sorting)."""
    tops, indices, predecessor = list[int](), list[int](), dict[int, int]()
    for index, job in enumerate(jobs):
        length = bisect_left(tops, -job.priority)
        if length == len(tops):
            tops.append(-job.priority)
            indices.append(index)
        else:
            tops[length], indices[length] = -job.priority, index
        if length:
            predecessor[index] = indices[length - 1]
    kept, current = set[JobId](), indices[-1] if indices else None
    while current is not None:
        kept.add(jobs[current].id)
        current = predecessor.get(current)
    return frozenset(kept)


class NodeWeight(IntEnum):
    """Node weights; Slurm fills nodes of low weight first. There are few, so that they change rarely."""

    NO_GPU = 10
    """CPU-only jobs go where they cannot block a GPU."""
    ALL_GPUS_BUSY = 20
    MOSTLY_BUSY = 30
    PARTLY_BUSY = 40
    IDLE = 50
    """Last, so that whole nodes stay free for large jobs."""


def weight_operations(snapshot: Snapshot) -> Iterator[Operation]:
    """Yield a new weight for each node that is up and whose weight differs."""
    for node in snapshot.nodes:
        target = target_weight(node)
        if node.state is NodeState.UP and node.weight != target:
            yield Operation(Verb.WEIGH, node.name, Reason(ReasonCode.LEAN), node.weight, int(target))


def target_weight(node: Node) -> NodeWeight:
    """The weight of a node: lowest without GPUs, then the lower the fuller the node is."""
    total, idle = len(node.gpus), sum(gpu.idle for gpu in node.gpus)
    if not total:
        return NodeWeight.NO_GPU
    if not idle:
        return NodeWeight.ALL_GPUS_BUSY
    if idle == total:
        return NodeWeight.IDLE
    return NodeWeight.MOSTLY_BUSY if 2 * idle <= total else NodeWeight.PARTLY_BUSY
