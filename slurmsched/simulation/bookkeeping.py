"""What a round leaves for the next one, kept in memory: the store's part without a database.

A simulation asks nothing of the past but what decides the future, so there are no rows and no history; a test holds it
against the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurmsched.model import (
    Code,
    Hold,
    JobId,
    JobState,
    Memory,
    Notified,
    Operation,
    Outcome,
    Request,
    Result,
    Snapshot,
    Verb,
)
from slurmsched.rounds.holds import held_by_us
from slurmsched.rounds.notified import NEWCOMERS
from slurmsched.store.accounts import DAY
from slurmsched.store.journal import Entry
from slurmsched.store.remembering import RETRY_AFTER

__all__ = ["Bookkeeping"]

_NOTHING = Memory()
_WITH_RESOURCES = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


@dataclass(slots=True)
class _Known:
    """What is remembered of a job: its own request, and what of it is ours."""

    original: Request
    held: bool = False
    reshaped: bool = False


@dataclass(slots=True)
class Bookkeeping:
    """The journal that the applier writes to, and the memory that rounds are given."""

    policy_state: Mapping[str, object] = field(default_factory=dict)
    _known: dict[JobId, _Known] = field(default_factory=dict)
    _runs: defaultdict[JobId, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    _moves: defaultdict[JobId, list[float]] = field(default_factory=lambda: defaultdict(list))
    _stalled: dict[JobId, tuple[float, str]] = field(default_factory=dict)
    _released: dict[JobId, float] = field(default_factory=dict)
    _notified: dict[JobId, Notified] = field(default_factory=dict)
    _rows: int = 0

    def memory(self, snapshot: Snapshot) -> Memory:
        """What earlier rounds left for the jobs in the snapshot, which has been sighted."""
        known = {job: known for job, known in self._known.items() if job in snapshot.job}
        return Memory(
            originals={job: own.original for job, own in known.items() if own.reshaped},
            held=frozenset(job for job, own in known.items() if own.held),
            service={job: sum(self._runs[job].values()) for job in known if job in self._runs},
            moves={
                job: times
                for job in known
                if job in self._moves and (times := tuple(at for at in self._moves[job] if at > snapshot.time - DAY))
            },
            stalled={job: said for job, (at, said) in self._stalled.items() if at > snapshot.time - RETRY_AFTER},
            policy_state=self.policy_state,
            notified={
                job: told
                for job, told in self._notified.items()
                if (seen := snapshot.job.get(job)) is not None
                and seen.state is JobState.RUNNING
                and (seen.start_time or 0.0) <= told.at
            },
        )

    def sight(self, snapshot: Snapshot) -> None:
        """Bring jobs and accounts up to a poll; all jobs are managed. What has left the snapshot is forgotten."""
        for job in snapshot.jobs:
            waits = job.state is JobState.PENDING
            known = self._known.setdefault(job.id, _Known(job.standing))
            if waits:
                known.held = job.hold is not Hold.NONE and (known.held or held_by_us(job, _NOTHING))
                if not known.reshaped:
                    known.original = job.standing
            elif job.state in _WITH_RESOURCES:
                known.held = known.held and job.state is JobState.COMPLETING
                if job.start_time is not None:
                    self._runs[job.id][job.start_time] = snapshot.gpus_of(job) * max(job.run_time, 0.0)
        for gone in self._known.keys() - snapshot.job.keys():
            for table in (self._known, self._runs, self._moves, self._stalled, self._released, self._notified):
                table.pop(gone, None)

    def paused(self) -> None:
        """Nobody pauses a simulation."""

    def intend(self, round_id: int, numbered: Iterable[tuple[int, Operation]], _at: float) -> tuple[Entry, ...]:
        """These are about to be done: what they would make ours is ours."""
        entries = tuple(Entry(self._next(), round_id, place, operation) for place, operation in numbered)
        for operation in (entry.operation for entry in entries):
            known = self._known.get(operation.subject)
            if known is not None:
                known.held = known.held or operation.verb in (Verb.HOLD, Verb.REQUEUE)
                known.reshaped = known.reshaped or operation.verb is Verb.RESHAPE
        return entries

    def forgo(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], became: Result, detail: str, at: float
    ) -> None:
        """What is not done leaves no trace."""

    def record(self, became: Sequence[tuple[Entry, Outcome]], at: float) -> None:
        """What the cluster showed of each: what is no longer ours is not."""
        for _, outcome in became:
            operation, done = outcome.operation, outcome.result is Result.DONE
            if operation.verb is Verb.REQUEUE and done:
                self._moves[operation.subject].append(at)
                self._notified.pop(operation.subject, None)
            if operation.verb is Verb.NOTIFY and done:
                self._notified.pop(operation.subject, None)
                if newcomers := str(operation.reason.details.get(NEWCOMERS, "")):
                    self._notified[operation.subject] = Notified(at, tuple(newcomers.split(",")))
            if operation.verb is Verb.RELEASE and done:
                self._released[operation.subject] = at
            known = self._known.get(operation.subject)
            if known is None:
                continue
            if operation.verb in (Verb.HOLD, Verb.REQUEUE):
                known.held = known.held and done
            elif operation.verb is Verb.RELEASE and done:
                known.held = False
            elif operation.verb is Verb.RESHAPE and done and operation.reason.code is Code.GIVE_BACK:
                known.reshaped = False

    def mark_undone(self, entry: Entry, detail: str) -> None:
        """A start that did not happen was taken back: its job is not tried again for a while."""
        if entry.operation.verb is Verb.RELEASE:
            subject = entry.operation.subject
            self._stalled[subject] = (self._released[subject], detail)

    def _next(self) -> int:
        self._rows += 1
        return self._rows
