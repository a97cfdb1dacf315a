"""Replaying a decision over the room there is: who starts, who has to be gone for it, and what cannot be done.

A decision is not trusted to add up. What does not fit, or would touch a job that must stay, is deferred; and if
anything is, no running job is moved or resized for its sake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from slurmsched.model import Code, Decision, Job, JobId, JobState, Reason, Shape, Share, Target
from slurmsched.policies.protocol import Situation
from slurmsched.rounds.room import Room
from slurmsched.rounds.shapes import assigned
from slurmsched.rounds.usable import open_to

__all__ = ["Seating", "Start", "seat"]


@dataclass(frozen=True, slots=True)
class Start:
    """A job that gets its target: `gone` have to leave first, itself included where it is moved."""

    job: Job
    target: Target
    shape: Shape
    gone: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class Seating:
    """`starts` in the order of the decision, those that need nobody gone first; `leaving` the jobs to be requeued.

    `notified` are jobs that are only told to write their checkpoint, with those they give way to in a later round.
    """

    starts: tuple[Start, ...]
    leaving: tuple[JobId, ...]
    deferred: Mapping[JobId, Reason]
    notified: Mapping[JobId, tuple[JobId, ...]] = field(default_factory=dict)


def seat(situation: Situation, decision: Decision) -> Seating:
    """As much of the decision as can be done without over-committing a node or touching a fixed job."""
    jobs = {job.id: situation.snapshot.job.get(job.id, job) for job in situation.jobs}
    ranks = _ranks(decision)
    starts = [
        Start(jobs[target.job], target, assigned(target.shares, jobs[target.job].request, situation.snapshot.node))
        for target in sorted(decision.targets.values(), key=lambda target: ranks.get(target.job, len(ranks)))
        if target.job in jobs and not _keeps(jobs[target.job], target)
    ]
    moves = frozenset(start.job.id for start in starts if start.job.state is JobState.RUNNING)
    seating = _Attempt(situation, decision, jobs, moves).seat(starts)
    if moves and seating.deferred:
        seating = _Attempt(situation, decision, jobs, frozenset()).seat(starts)
    return seating


def _ranks(decision: Decision) -> dict[JobId, int]:
    return {ranked.job: place for place, ranked in enumerate(decision.order)}


def _keeps(job: Job, target: Target) -> bool:
    """Whether a running job already has what it shall have; which devices they are is Slurm's choice."""
    return job.state is JobState.RUNNING and _amounts(job.shares) == _amounts(target.shares)


def _amounts(shares: tuple[Share, ...]) -> list[tuple[str, int, int, int]]:
    return sorted((s.node, s.resources.gpus, s.resources.cpus, s.resources.memory) for s in shares)


class _Attempt:
    """One replay; `moves` are the running jobs that it may move."""

    def __init__(
        self, situation: Situation, decision: Decision, jobs: Mapping[JobId, Job], moves: Collection[JobId]
    ) -> None:
        self._situation, self._decision, self._moves = situation, decision, moves
        ranks = _ranks(decision)
        self._room = Room(situation.snapshot)
        self._leaving: dict[JobId, None] = {}
        self._deferred: dict[JobId, Reason] = {}
        self._movable = frozenset(job.id for job in jobs.values() if self._may_leave(job))
        for job in sorted(self._movable, key=lambda job: (-ranks.get(job, len(ranks)), job)):
            self._room.vacate(job, jobs[job].shares)  # of equals, the last in the order gives way first

    def seat(self, starts: list[Start]) -> Seating:
        allowed = [start for start in starts if self._is_allowed(start)]
        moved = [start for start in allowed if start.job.id in self._moves]
        waiting = [start for start in allowed if start.job.id not in self._moves]
        at_once = list(self._seated(waiting, lambda _: lambda _: None))
        seated = {start.job.id for start in at_once}
        rest = moved + [start for start in waiting if start.job.id not in seated]
        later = list(self._seated(rest, self._reluctance))
        placed = seated | {start.job.id for start in later}
        for start in rest:
            if start.job.id not in placed:
                self._deferred.setdefault(start.job.id, Reason(Code.NO_ROOM, {"gpus": start.shape.gpus}))
        return Seating((*at_once, *later), tuple(self._leaving), self._deferred)

    def _may_leave(self, job: Job) -> bool:
        if job.state is not JobState.RUNNING or job.id in self._situation.fixed:
            return False
        return job.id in self._moves or (job.id in self._decision.victims and job.id not in self._decision.targets)

    def _is_allowed(self, start: Start) -> bool:
        job, situation = start.job, self._situation
        if job.state is JobState.RUNNING and job.id not in self._movable:
            self._deferred[job.id] = situation.fixed.get(job.id, Reason(Code.NO_ROOM, {"gpus": start.shape.gpus}))
            return False
        if not set(start.shape.nodes) <= open_to(job, situation.snapshot, situation.usable):
            self._deferred[job.id] = Reason(Code.NO_ROOM, {"gpus": start.shape.gpus})
            return False
        return True

    def _seated(
        self, starts: list[Start], reluctance: Callable[[Start], Callable[[JobId], int | None]]
    ) -> Iterator[Start]:
        for start in starts:
            claimed = self._room.claim(_as_given(start), reluctance(start))
            if claimed is None:
                continue
            owners, take_back = claimed
            gone = dict.fromkeys((start.job.id, *owners) if start.job.id in self._moves else owners)
            if len(self._leaving.keys() | gone.keys()) > self._situation.moves:
                take_back()
                self._deferred[start.job.id] = Reason(Code.MOVES_SPENT, {"limit": self._situation.moves})
                continue
            self._leaving |= gone
            yield replace(start, gone=tuple(gone))

    def _reluctance(self, start: Start) -> Callable[[JobId], int | None]:
        """Whose room to take first: its own, then of jobs that leave anyway, then of those meant to give way to it."""

        def reluctance(owner: JobId) -> int:
            if owner == start.job.id:
                return 0
            if owner in self._leaving:
                return 1
            return 2 if self._decision.victims.get(owner) == start.job.id else 3

        return reluctance


def _as_given(start: Start) -> tuple[Share, ...]:
    """The shares as Slurm will charge them: it gives the same memory on every node."""
    return tuple(
        replace(share, resources=replace(share.resources, memory=start.shape.memory)) for share in start.target.shares
    )
