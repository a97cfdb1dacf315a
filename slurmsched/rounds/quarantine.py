"""Deciding around the jobs that make it fail: one job must not keep everybody else from being scheduled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

from slurmsched.model import Job, JobId, Request

__all__ = ["changed", "decided_around", "mark_of"]

T = TypeVar("T")


def mark_of(job: Job) -> str:
    """A short text that is another one once anything about the job changes that a decision looks at, time aside."""
    seen = (
        job.user,
        job.account,
        job.partitions,
        job.qos,
        job.state.value,
        job.hold.value,
        _amounts(job.standing),
        [(s.node, s.resources.gpus, s.resources.cpus, s.resources.memory, s.indices, s.shards) for s in job.shares],
        job.comment,
        job.time_limit,
        job.nice,
        job.restarts,
        job.dependency,
        job.reservation,
        job.throttle,
        job.unmanageable,
    )
    return blake2b(repr(seen).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def changed(marks: Mapping[JobId, str], before: Mapping[JobId, str]) -> tuple[JobId, ...]:
    """The jobs that are new or other than before, those last that are new."""
    other = (job for job, mark in marks.items() if before.get(job) != mark)
    return tuple(sorted(other, key=lambda job: job not in before))


def decided_around(
    decide: Callable[[Collection[JobId]], T], suspects: Sequence[JobId], may_go_on: Callable[[], bool]
) -> tuple[T, frozenset[JobId]]:
    """What is decided without as few of the suspects as can be told in the time, and which these are.

    `decide` is called with the jobs to leave out. First all suspects are left out: what it raises then is raised here.
    Then more and more of them are let in again, by halves, so that one culprit among n costs log n decisions. Once
    `may_go_on` says no, all that are not known to be harmless stay out.
    """
    left, culprits, harmless = list(suspects), set[JobId](), 0
    best = decide(frozenset(left))
    while harmless < len(left):
        tipping = len(left)  # it fails with all before this place let in
        while tipping - harmless > 1 and may_go_on():
            middle = (harmless + tipping) // 2
            try:
                best, harmless = decide(culprits.union(left[middle:])), middle
            except Exception:  # whatever it is, somebody before `middle` makes deciding fail
                tipping = middle
        if tipping - harmless > 1:
            break
        culprits.add(left.pop(harmless))
        if not may_go_on():
            break
        try:
            return decide(frozenset(culprits)), frozenset(culprits)
        except Exception:  # noqa: S112 there is another one among those that are left
            continue
    return best, frozenset(culprits.union(left[harmless:]))


def _amounts(asked: Request) -> tuple[object, ...]:
    return (
        asked.gpus,
        asked.gpu_type,
        asked.gpus_per_node,
        asked.nodes,
        asked.max_nodes,
        asked.tasks,
        asked.cpus,
        asked.memory,
        asked.shards,
        asked.features,
        sorted(asked.pinned),
        sorted(asked.excluded),
        asked.exclusive,
    )
