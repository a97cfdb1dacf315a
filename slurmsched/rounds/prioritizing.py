"""Making Slurm's own order follow ours through `nice`, with few updates and little boost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from slurmsched.model import Code, Decision, Hold, Job, JobId, JobState, Memory, Operation, Reason, Snapshot, Verb

__all__ = ["prioritizing"]

_STEP: Final = 100
"""Priority left between two jobs that are moved, so that a later one finds room between them."""

_BOOST: Final = 10 * _STEP
"""How far above the highest priority that Slurm itself gave any of them a job may be put."""


def prioritizing(snapshot: Snapshot, decision: Decision, memory: Memory, order: str) -> Iterator[Operation]:
    """A new nice for as few waiting jobs as bring the priorities in line with the decision.

    Ranks count in buckets that widen down the queue; inside a bucket Slurm's own order stands. Of the rest the longest
    run that is already in order keeps its nice, the others are put between. Held jobs have no priority to speak of.
    """
    ranked = [(rank, snapshot.job.get(entry.job)) for rank, entry in enumerate(decision.order, 1)]
    waiting = [(rank, job) for rank, job in ranked if job is not None and _is_queued(job)]
    waiting.sort(key=lambda entry: (_bucket(entry[0]), -entry[1].priority))
    wanted = _priorities([job for _, job in waiting], memory)
    for rank, job in waiting:
        nice = job.nice + job.priority - wanted[job.id]
        if nice != job.nice:
            yield Operation(Verb.PRIORITIZE, job.id, Reason(Code.RANK, {"rank": rank, "order": order}), job.nice, nice)


def _is_queued(job: Job) -> bool:
    return job.state is JobState.PENDING and job.hold is Hold.NONE and job.priority > 0


def _bucket(rank: int) -> int:
    """Ranks 1 to 4 stand alone; then come 5-6, 7-8, 9-12, 13-16, 17-24, ..."""
    octave = (rank - 1).bit_length()
    return 2 * octave + (4 * rank > 3 << octave)


def _priorities(jobs: Sequence[Job], memory: Memory) -> dict[JobId, int]:
    """A priority for each job, falling in the given order: most of them as they are, or all anew where that boosts."""
    own = [job.priority + job.nice - memory.nices.get(job.id, job.nice) for job in jobs]
    top = max((*own, _STEP * len(jobs)), default=0)
    wanted = _falling(jobs, _longest_falling(jobs), top)
    return wanted if not jobs or wanted[jobs[0].id] <= top + _BOOST else _falling(jobs, frozenset(), top)


def _falling(jobs: Sequence[Job], kept: frozenset[JobId], top: int) -> dict[JobId, int]:
    """Strictly falling priorities (down to 1), the kept jobs' own where that is possible."""
    wanted, above = dict[JobId, int](), None
    for job, (below, gaps) in zip(jobs, _next_kept(jobs, kept), strict=True):
        if job.id in kept and (above is None or job.priority < above):
            above = job.priority
        elif above is None:
            above = top if below is None else below + _STEP * gaps
        else:
            step = _STEP if below is None else min(_STEP, (above - below) // (gaps + 1))
            above = max(1, above - max(1, step))
        wanted[job.id] = above
    return wanted


def _next_kept(jobs: Sequence[Job], kept: frozenset[JobId]) -> list[tuple[int | None, int]]:
    """For each job the priority of the next one that keeps its own, and how far down that is."""
    found: list[tuple[int | None, int]] = []
    below: int | None = None
    distance = 0
    for job in reversed(jobs):
        distance += 1
        found.append((below, distance))
        if job.id in kept:
            below, distance = job.priority, 0
    return found[::-1]


def _longest_falling(jobs: Sequence[Job]) -> frozenset[JobId]:
    """The longest subsequence whose priorities already fall strictly (patience sorting)."""
    tops, places, before = list[int](), list[int](), dict[int, int]()
    for place, job in enumerate(jobs):
        length = bisect_left(tops, -job.priority)
        if length == len(tops):
            tops.append(-job.priority)
            places.append(place)
        else:
            tops[length], places[length] = -job.priority, place
        if length:
            before[place] = places[length - 1]
    kept, at = set[JobId](), places[-1] if places else None
    while at is not None:
        kept.add(jobs[at].id)
        at = before.get(at)
    return frozenset(kept)
