"""What applying a plan needs of a journal and of a gate; the store's and the settings' own are those of the daemon.

How far one plan has come, in the journal and on the cluster: the state of an application.

A plan carried out: the only code that changes the cluster.

Settle passes: do what may be done, wait, look, until every start has happened or was taken back. Which operations are
ready, settled or overdue is decided by `rounds`; whether anything may be done at all by the gate, before each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.clock import Clock
from slurmsched.model import Job, JobId, Operation, Outcome, Plan, Result, Snapshot, Verb
from slurmsched.rounds.progress import FinishedOperation, PlanProgress, undo_overdue_starts
from slurmsched.settings.definition import RoundSettings
from slurmsched.store.journal import JournalEntry


class OperationJournal(Protocol):
    """Where every operation is before the cluster hears of it. All raise StoreError."""

    def record_intents(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], at: float, /
    ) -> tuple[JournalEntry, ...]:
        """These operations, each with its place in the plan, are about to be done together."""

    def record_skipped(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], became: Result, detail: str, at: float, /
    ) -> None:
        """These were planned and are not done."""

    def record_outcomes(self, became: Sequence[tuple[JournalEntry, Outcome]], at: float, /) -> None:
        """What the cluster showed of each."""

    def mark_undone(self, entry: JournalEntry, detail: str, /) -> None:
        """It was done and has been taken back since."""


class OperationGate(Protocol):
    """Whether anything may be changed now, asked before each batch."""

    def closed_reason(self) -> str | None:
        """Why nothing at all may be changed; None while the gate is open."""

    def block_reason(self, operation: Operation, /) -> str | None:
        """Why this operation may not be done even while the gate is open."""


@dataclass(slots=True)
class PlanExecution:
    """One plan on its way. Operations of the plan are numbered by place; what takes them back comes after.

    Nothing reaches the backend without an intent in the journal before and an outcome after.
    """

    round_id: int
    plan: Plan
    snapshot: Snapshot
    backend: Backend
    journal: OperationJournal
    clock: Clock
    done: dict[int, FinishedOperation] = field(default_factory=dict)
    entries: dict[int, JournalEntry] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    undone: set[tuple[Verb, str]] = field(default_factory=set)
    stale: bool = False
    """Something was executed since the snapshot was taken."""
    checkpointed: frozenset[JobId] = frozenset()
    """Jobs that were notified and say that their checkpoint is written."""
    _offset: float = 0.0

    def __post_init__(self) -> None:
        self._offset = self.clock.now() - self.clock.monotonic()

    @property
    def now(self) -> float:
        """Unix seconds as of the start of the plan, then counted steadily: leads are not cut short by a set clock."""
        return self._offset + self.clock.monotonic()

    @property
    def progress(self) -> PlanProgress:
        """Where it stands, for the pure rules."""
        return PlanProgress(self.plan, self.done, self.snapshot, self.now, self.checkpointed)

    @property
    def notified(self) -> tuple[Job, ...]:
        """Jobs that were told to write a checkpoint and that nobody has requeued yet."""
        requeued = {subject for subject, place in self.progress.requeues.items() if place in self.done}
        finished = (self.plan.operations[index] for index in self.done)
        names = dict.fromkeys(op.subject for op in finished if op.verb is Verb.NOTIFY and op.subject not in requeued)
        return tuple(self.snapshot.jobs_by_id[name] for name in names if name in self.snapshot.jobs_by_id)

    def observe(self) -> None:
        """See the cluster as it is now."""
        self.snapshot, self.stale = self.backend.observe(), False

    @property
    def step_count(self) -> int:
        """How much has been decided one way or the other; grows while there is progress."""
        return len(self.done) + len(self.undone)

    def skip(self, indices: Iterable[int], result: Result, detail: str) -> None:
        """These operations of the plan are not done."""
        numbered = [(place, self.plan.operations[place]) for place in indices]
        if numbered:
            self.journal.record_skipped(self.round_id, numbered, result, detail, self.clock.now())
        for place, operation in numbered:
            self.done[place] = FinishedOperation(result, self.now)
            self.outcomes.append(Outcome(operation, result, self.backend.commands(operation), detail))

    def execute(self, indices: Sequence[int]) -> None:
        """Do these operations of the plan as one batch."""
        executed = self._execute([(place, self.plan.operations[place]) for place in indices])
        for entry, outcome in executed:
            self.entries[entry.position] = entry
            self.done[entry.position] = FinishedOperation(outcome.result, self.now)

    def undo(self, operations: Sequence[Operation]) -> None:
        """Do these, which undo starts that did not happen. A start is undone once its job is held again."""
        first = len(self.plan.operations) + len(self.undone)
        self.undone |= {(operation.verb, operation.subject) for operation in operations}
        executed = self._execute(list(enumerate(operations, first)))
        starts = self.progress.starts
        for _, outcome in executed:
            index = starts.get(outcome.operation.subject)
            held_again = outcome.operation.verb is Verb.HOLD and outcome.result is Result.DONE
            if held_again and index is not None and self.progress.succeeded(index):
                self._mark_undone(index)

    def _execute(self, numbered: Sequence[tuple[int, Operation]]) -> Sequence[tuple[JournalEntry, Outcome]]:
        entries = self.journal.record_intents(self.round_id, numbered, self.clock.now())
        self.stale = True
        executed = tuple(zip(entries, self.backend.execute([operation for _, operation in numbered]), strict=True))
        self.journal.record_outcomes(executed, self.clock.now())
        self.outcomes.extend(outcome for _, outcome in executed)
        return executed

    def _mark_undone(self, index: int) -> None:
        operation = self.plan.operations[index]
        job = self.snapshot.jobs_by_id.get(operation.subject)
        reason = "" if job is None else job.reason
        self.journal.mark_undone(self.entries[index], reason)
        self.done[index] = FinishedOperation(Result.UNDONE, self.now)
        self.outcomes.append(Outcome(operation, Result.UNDONE, detail=reason))


BATCH_SIZE: Final = 100
"""Most operations done together: about a second of slurmctld's time, after which a pause or a stop is heeded."""

_BACKOFF_FACTOR: Final = 1.5
_MAX_INTERVAL: Final = 15.0
"""Each look that shows no progress is followed by a longer wait, up to so many seconds."""

_GRACE: Final = 60.0
"""Seconds beyond leads and timeouts for the looks in between; then a round ends whatever it still waits for."""


CheckpointedJobs = Callable[[Sequence[Job]], frozenset[JobId]]
"""Which of these jobs say that they have written their checkpoint."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
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
        journal: OperationJournal,
        gate: OperationGate,
        clock: Clock,
        rounds: RoundSettings,
        *,
        tick: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
        checkpointed: CheckpointedJobs = lambda _jobs: frozenset(),
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._gate = gate
        self._clock = clock
        self._rounds = rounds
        self._tick = tick
        self._stopping = stopping
        self._checkpointed = checkpointed

    def apply(self, round_id: int, plan: Plan, snapshot: Snapshot) -> ApplyResult:
        """Do what the gate lets through, until it has settled. `snapshot` is the one that the plan was made from."""
        execution = self._begin(round_id, plan, snapshot)
        deadline = execution.now + self._max_duration(plan)
        closed, wait = self._advance(execution) or self._undo_overdue(execution), self._rounds.settle_interval
        while closed is None and not execution.progress.settled() and execution.now < deadline:
            self._tick()
            self._clock.sleep(wait)
            execution.observe()
            execution.checkpointed = self._checkpointed(execution.notified)
            steps = execution.step_count
            closed = self._advance(execution) or self._undo_overdue(execution)
            progressed = execution.step_count > steps
            wait = self._rounds.settle_interval if progressed else min(wait * _BACKOFF_FACTOR, max(_MAX_INTERVAL, wait))
        return self._finish(execution, closed)

    def apply_without_waiting(self, round_id: int, plan: Plan, snapshot: Snapshot) -> ApplyResult:
        """Do what the gate lets through and wait for nothing: when Slurm starts what is released is its own affair."""
        execution = self._begin(round_id, plan, snapshot)
        return self._finish(execution, self._advance(execution))

    def _begin(self, round_id: int, plan: Plan, snapshot: Snapshot) -> PlanExecution:
        """What may not be done at all is said at once; what depends on it is then hopeless."""
        execution = PlanExecution(round_id, plan, snapshot, self._backend, self._journal, self._clock)
        closed = self._closed_reason()
        bars = {index: closed or self._gate.block_reason(operation) for index, operation in enumerate(plan.operations)}
        for reason in dict.fromkeys(said for said in bars.values() if said is not None):
            execution.skip([place for place, bar in bars.items() if bar == reason], Result.BLOCKED, reason)
        return execution

    def _advance(self, execution: PlanExecution) -> str | None:
        """Everything that may be done before the next look; why no more may be done, None while more may."""
        while ready := execution.progress.ready()[:BATCH_SIZE]:
            closed = self._closed_reason()
            if closed is not None:
                return closed
            execution.execute(ready)
            self._tick()
        return None

    def _undo_overdue(self, execution: PlanExecution) -> str | None:
        """The starts that are overdue; why no more may be done, None while more may."""
        overdue = undo_overdue_starts(execution.progress, self._rounds.settle_timeout).operations
        undoing = [
            op
            for op in overdue
            if (op.verb, op.subject) not in execution.undone and self._gate.block_reason(op) is None
        ]
        closed = self._closed_reason() if undoing else None
        if undoing and closed is None:
            execution.undo(undoing)
        return closed

    def _closed_reason(self) -> str | None:
        return "the daemon is stopping" if self._stopping() else self._gate.closed_reason()

    def _finish(self, execution: PlanExecution, closed: str | None) -> ApplyResult:
        unfinished = [place for place in range(len(execution.plan.operations)) if place not in execution.done]
        if closed is not None:
            execution.skip(unfinished, Result.BLOCKED, closed)
        else:
            execution.skip(unfinished, Result.OVERTAKEN, "nobody needs it any more, or what it waited for did not come")
        if execution.stale:
            execution.observe()  # what is remembered of a job must not be older than what was done to it
        return ApplyResult(tuple(execution.outcomes), execution.snapshot)

    def _max_duration(self, plan: Plan) -> float:
        """A bound on everything: the longest lead, then the requeue and the start each in its time."""
        lead = max((operation.lead for operation in plan.operations), default=0)
        return lead + 2 * self._rounds.settle_timeout + _GRACE
