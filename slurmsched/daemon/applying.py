"""A plan carried out: the only code that changes the cluster.

Settle passes: do what may be done, wait, look, until every start has happened or was taken back. Which operations are
ready, settled or overdue is decided by `rounds`; whether anything may be done at all by the gate, before each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.course import Course
from slurmsched.daemon.journalling import Gating, Journalling
from slurmsched.model import Job, JobId, Outcome, Plan, Result, Snapshot
from slurmsched.rounds.undoing import overdue
from slurmsched.settings.definition import Rounds

__all__ = ["Applied", "Applier"]

BATCH: Final = 100
"""Most operations done together: about a second of slurmctld's time, after which a pause or a stop is heeded."""

_SLOWER: Final = 1.5
_SLOWEST: Final = 15.0
"""Each look that shows no progress is followed by a longer wait, up to so many seconds."""

_GRACE: Final = 60.0
"""Seconds beyond leads and timeouts for the looks in between; then a round ends whatever it still waits for."""


Saved = Callable[[Sequence[Job]], frozenset[JobId]]
"""Which of these jobs say that they have written their checkpoint."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan, and the cluster as it was seen last. `changed` where anything was tried at all."""

    outcomes: tuple[Outcome, ...]
    snapshot: Snapshot

    @property
    def changed(self) -> bool:
        return any(outcome.result is not Result.BLOCKED for outcome in self.outcomes)


class Applier:
    """Carries out plans on one backend. `tick` is called at least once per pass; `stopping` is asked before each batch;
    a job that is `saved` is requeued before its lead is over.

    Raises UnreachableError and StoreError as they come: what was intended then is read back by the next round.
    """

    def __init__(
        self,
        backend: Backend,
        journal: Journalling,
        gate: Gating,
        clock: Clock,
        rounds: Rounds,
        *,
        tick: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
        saved: Saved = lambda _jobs: frozenset(),
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._gate = gate
        self._clock = clock
        self._rounds = rounds
        self._tick = tick
        self._stopping = stopping
        self._saved = saved

    def apply(self, round_id: int, plan: Plan, snapshot: Snapshot) -> Applied:
        """Do what the gate lets through, until it has settled. `snapshot` is the one that the plan was made from."""
        course = self._begun(round_id, plan, snapshot)
        deadline = course.now + self._longest(plan)
        closed, wait = self._advance(course) or self._take_back(course), self._rounds.settle_interval
        while closed is None and not course.progress.settled() and course.now < deadline:
            self._tick()
            self._clock.sleep(wait)
            course.look()
            course.saved = self._saved(course.notified)
            steps = course.steps
            closed = self._advance(course) or self._take_back(course)
            progressed = course.steps > steps
            wait = self._rounds.settle_interval if progressed else min(wait * _SLOWER, max(_SLOWEST, wait))
        return self._ended(course, closed)

    def apply_at_once(self, round_id: int, plan: Plan, snapshot: Snapshot) -> Applied:
        """Do what the gate lets through and wait for nothing: when Slurm starts what is released is its own affair."""
        course = self._begun(round_id, plan, snapshot)
        return self._ended(course, self._advance(course))

    def _begun(self, round_id: int, plan: Plan, snapshot: Snapshot) -> Course:
        """What may not be done at all is said at once; what depends on it is then hopeless."""
        course = Course(round_id, plan, snapshot, self._backend, self._journal, self._clock)
        closed = self._closed()
        why = {place: closed or self._gate.bars(operation) for place, operation in enumerate(plan.operations)}
        for said in dict.fromkeys(said for said in why.values() if said is not None):
            course.forgo([place for place, bar in why.items() if bar == said], Result.BLOCKED, said)
        return course

    def _advance(self, course: Course) -> str | None:
        """Everything that may be done before the next look; why no more may be done, None while more may."""
        while ready := course.progress.ready()[:BATCH]:
            closed = self._closed()
            if closed is not None:
                return closed
            course.execute(ready)
            self._tick()
        return None

    def _take_back(self, course: Course) -> str | None:
        """The starts that are overdue; why no more may be done, None while more may."""
        late = overdue(course.progress, self._rounds.settle_timeout).operations
        back = [op for op in late if (op.verb, op.subject) not in course.undone and self._gate.bars(op) is None]
        closed = self._closed() if back else None
        if back and closed is None:
            course.take_back(back)
        return closed

    def _closed(self) -> str | None:
        return "the daemon is stopping" if self._stopping() else self._gate.closed()

    def _ended(self, course: Course, closed: str | None) -> Applied:
        rest = [place for place in range(len(course.plan.operations)) if place not in course.done]
        if closed is not None:
            course.forgo(rest, Result.BLOCKED, closed)
        else:
            course.forgo(rest, Result.OVERTAKEN, "nobody needs it any more, or what it waited for did not come")
        if course.outdated:
            course.look()  # what is remembered of a job must not be older than what was done to it
        return Applied(tuple(course.outcomes), course.snapshot)

    def _longest(self, plan: Plan) -> float:
        """A bound on everything: the longest lead, then the requeue and the start each in its time."""
        lead = max((operation.lead for operation in plan.operations), default=0)
        return lead + 2 * self._rounds.settle_timeout + _GRACE
