"""One job's trouble kept to that job: whatever fails about it sets it aside, and the round goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.failing import RoundFailedError, kind_and_place, traced
from slurmsched.model import JobId, Overview, Request, Snapshot, SynschedError, survey
from slurmsched.rounds.explaining import explain
from slurmsched.rounds.explanation import Explanation
from slurmsched.rounds.fragments import surveyed
from slurmsched.rounds.quarantine import changed, decided_around, mark_of
from slurmsched.rounds.round import RoundResult
from slurmsched.rounds.scope import unmanaged
from slurmsched.rounds.set_aside import without
from slurmsched.settings.definition import Settings
from slurmsched.store.set_aside import Mark
from slurmsched.store.store import Store

__all__ = ["Decided", "decided", "known_trouble", "managed_among", "overview_of"]

_AGAIN: Final = 3600.0
"""Seconds after which a job about which deciding failed is tried again although nothing about it has changed."""
_TRIES: Final = 60
_LONGEST: Final = 30.0
"""Most further decisions of a round that failed, and seconds for all of them: then all that changed stay out of it."""


def known_trouble(snapshot: Snapshot, store: Store) -> dict[JobId, str]:
    """The jobs about which deciding failed a while ago and that are as they were; why. Raises StoreError."""
    marks = store.set_aside.marks()
    return {
        job.id: marks[job.id].reason
        for job in snapshot.jobs
        if job.id in marks
        and snapshot.time - marks[job.id].tried < _AGAIN
        and _mark(snapshot, job.id) == marks[job.id].mark
    }


def managed_among(snapshot: Snapshot, settings: Settings) -> tuple[frozenset[JobId], dict[JobId, str]]:
    """The managed jobs; and those of which that cannot be told, with the reason."""
    managed: set[JobId] = set()
    failed: dict[JobId, str] = {}
    for job in snapshot.jobs:
        try:
            if unmanaged(job, settings) is None:
                managed.add(job.id)
        except Exception as error:
            failed[job.id] = f"whether it is managed cannot be told ({kind_and_place(error)})"
    return frozenset(managed), failed


def overview_of(snapshot: Snapshot, usual: tuple[tuple[Request, int], ...]) -> Overview:
    """What `status` shows of the nodes; without what is lost to the usual jobs where that cannot be worked out."""
    try:
        return surveyed(snapshot, usual)
    except Exception:  # requests of months go into it: none of them may end a round
        return survey(snapshot)


@dataclass(frozen=True, slots=True)
class Decided:
    """A round's decision. `marks` are of the jobs set aside because deciding failed over them."""

    result: RoundResult
    explanations: Mapping[JobId, Explanation]
    marks: Mapping[JobId, Mark]

    def explain(self, _result: RoundResult, job: JobId) -> Explanation:
        """As it was worked out before."""
        return self.explanations[job]


class Decide(Protocol):
    """Decides and plans over a snapshot, purely."""

    def __call__(self, snapshot: Snapshot, /) -> RoundResult: ...


def decided(snapshot: Snapshot, decide: Decide, store: Store, clock: Clock, say: Callable[[str], None]) -> Decided:
    """Decide; where that fails, again without the jobs that make it fail.

    First without those that are new or changed since the last round that could be decided, then, if nobody among them
    is to blame, among all. Raises RoundFailedError, StoreError, and a SynschedError that no job is to blame for.
    """
    try:
        result, out = decide(snapshot), frozenset[JobId]()
        why = ""
    except Exception as error:  # an error of any kind, for want of memory too, may be one job's doing
        why = _fails(error)
        say(f"deciding failed: {traced(error)}")
        result, out = _around(snapshot, decide, store, clock, error)
        say(f"decided without {len(out)} jobs that made it fail: {', '.join(sorted(out)[:10])}")
    reasons = dict.fromkeys(out, why)
    explanations, unexplained = _explained(result)
    if unexplained:
        reasons |= unexplained
        result = decide(without(snapshot, reasons))
        explanations, unexplained = _explained(result)
        explanations |= {job: Explanation(job, f"job {job}: {said}") for job, said in unexplained.items()}
    marks = {job: Mark(_mark(snapshot, job), snapshot.time, said) for job, said in reasons.items()}
    left = {job.id: _mark(snapshot, job.id) for job in snapshot.jobs if job.id not in marks}
    store.set_aside.decided(left, snapshot.time)
    return Decided(result, explanations, marks)


def _around(
    snapshot: Snapshot, decide: Decide, store: Store, clock: Clock, first: Exception
) -> tuple[RoundResult, frozenset[JobId]]:
    marks = {job.id: _mark(snapshot, job.id) for job in snapshot.jobs}
    suspects = changed(marks, store.set_aside.last_decided())
    budget, end = iter(range(_TRIES)), clock.monotonic() + _LONGEST

    def leaving_out(jobs: Collection[JobId]) -> RoundResult:
        return decide(without(snapshot, dict.fromkeys(jobs, _fails(first))))

    def may_go_on() -> bool:
        return next(budget, None) is not None and clock.monotonic() < end

    for among in (suspects, tuple(marks)):
        try:
            return decided_around(leaving_out, among, may_go_on)
        except Exception as error:
            last = error
    if isinstance(first, SynschedError):
        raise first
    raise RoundFailedError(f"the round could not be decided: {kind_and_place(last)}") from last


def _fails(error: Exception) -> str:
    return f"deciding about it fails ({kind_and_place(error)})"


def _explained(result: RoundResult) -> tuple[dict[JobId, Explanation], dict[JobId, str]]:
    explanations: dict[JobId, Explanation] = {}
    failed: dict[JobId, str] = {}
    for job in result.snapshot.jobs:
        if job.id in result.unmanaged:
            continue
        try:
            explanations[job.id] = explain(result, job.id)
        except Exception as error:
            failed[job.id] = f"it cannot be explained ({kind_and_place(error)})"
    return explanations, failed


def _mark(snapshot: Snapshot, job: JobId) -> str:
    try:
        return mark_of(snapshot.job[job])
    except Exception as error:  # what cannot be told apart counts as unchanged
        return kind_and_place(error)
