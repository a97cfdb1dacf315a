"""Applies a plan: the only code that changes the cluster.

Executes the operations that are ready, waits and polls, until each start has happened or was undone. Which operations
are ready, settled or overdue is decided by `rounds.progress`; the gate is asked before each batch.
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
    """Records each operation before and after it is executed. All methods raise StoreError."""

    def record_intents(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], at: float, /
    ) -> tuple[JournalEntry, ...]:
        """Record operations, each with its index in the plan, that are about to be executed as one batch."""

    def record_skipped(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], became: Result, detail: str, at: float, /
    ) -> None:
        """Record planned operations that are not executed."""

    def record_outcomes(self, became: Sequence[tuple[JournalEntry, Outcome]], at: float, /) -> None:
        """Record the outcome of each operation."""

    def mark_undone(self, entry: JournalEntry, detail: str, /) -> None:
        """Record that the operation was done and has been undone."""


class OperationGate(Protocol):
    """Whether anything may be changed now, asked before each batch."""

    def closed_reason(self) -> str | None:
        """Why nothing at all may be changed; None while the gate is open."""

    def block_reason(self, operation: Operation, /) -> str | None:
        """Why this operation may not be done even while the gate is open."""


@dataclass(slots=True)
class PlanExecution:
    """The state of one plan that is being applied. Its operations are numbered by index; undo operations follow them.

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
    """Whether something was executed since the snapshot was taken."""
    checkpointed: frozenset[JobId] = frozenset()
    """Jobs that were notified and report that their checkpoint is written."""
    _offset: float = 0.0

    def __post_init__(self) -> None:
        self._offset = self.clock.now() - self.clock.monotonic()

    @property
    def now(self) -> float:
        """Unix seconds by the monotonic clock since the start: setting the wall clock does not cut leads short."""
        return self._offset + self.clock.monotonic()

    @property
    def progress(self) -> PlanProgress:
        """The progress of the plan."""
        return PlanProgress(self.plan, self.done, self.snapshot, self.now, self.checkpointed)

    @property
    def notified(self) -> tuple[Job, ...]:
        """Jobs that were notified to write a checkpoint and are not requeued yet."""
        requeued = {subject for subject, index in self.progress.requeues.items() if index in self.done}
        finished = (self.plan.operations[index] for index in self.done)
        names = dict.fromkeys(op.subject for op in finished if op.verb is Verb.NOTIFY and op.subject not in requeued)
        return tuple(self.snapshot.jobs_by_id[name] for name in names if name in self.snapshot.jobs_by_id)

    def observe(self) -> None:
        """Poll the cluster."""
        self.snapshot, self.stale = self.backend.observe(), False

    @property
    def step_count(self) -> int:
        """Number of operations that are finished or undone; grows while there is progress."""
        return len(self.done) + len(self.undone)

    def skip(self, indices: Iterable[int], result: Result, detail: str) -> None:
        """Record that these operations of the plan are not executed."""
        numbered = [(index, self.plan.operations[index]) for index in indices]
        if numbered:
            self.journal.record_skipped(self.round_id, numbered, result, detail, self.clock.now())
        for index, operation in numbered:
            self.done[index] = FinishedOperation(result, self.now)
            self.outcomes.append(Outcome(operation, result, self.backend.commands(operation), detail))

    def execute(self, indices: Sequence[int]) -> None:
        """Execute these operations of the plan as one batch."""
        executed = self._execute([(index, self.plan.operations[index]) for index in indices])
        for entry, outcome in executed:
            self.entries[entry.position] = entry
            self.done[entry.position] = FinishedOperation(outcome.result, self.now)

    def undo(self, operations: Sequence[Operation]) -> None:
        """Execute operations that undo starts which did not happen; a start is undone once its job is held again."""
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
"""Most operations per batch: about a second of slurmctld's time; pauses and stops take effect between batches."""

_BACKOFF_FACTOR: Final = 1.5
_MAX_INTERVAL: Final = 15.0
"""Seconds; each poll without progress is followed by a longer wait, up to this."""

_GRACE: Final = 60.0
"""Seconds beyond leads and timeouts after which a round ends, whatever it still waits for."""


CheckpointedJobs = Callable[[Sequence[Job]], frozenset[JobId]]
"""Returns which of these jobs report that their checkpoint is written."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The outcomes of a plan, and the cluster as last polled."""

    outcomes: tuple[Outcome, ...]
    snapshot: Snapshot

    @property
    def changed(self) -> bool:
        """Whether any operation was tried."""
        return any(outcome.result is not Result.BLOCKED for outcome in self.outcomes)


class Applier:
    """Applies plans on one backend. `tick` is called at least once per pass, `stopping` before each batch; jobs that
    `checkpointed` returns are requeued before their lead is over.

    Raises UnreachableError and StoreError; the next round then determines the outcomes of open intents.
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
        """Do what the gate allows until the plan has settled; `snapshot` is the one that the plan was made from."""
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
        """Do what the gate allows, without waiting for Slurm to start what is released."""
        execution = self._begin(round_id, plan, snapshot)
        return self._finish(execution, self._advance(execution))

    def _begin(self, round_id: int, plan: Plan, snapshot: Snapshot) -> PlanExecution:
        """Begin with the operations that may not be done recorded as BLOCKED; their dependents are then hopeless."""
        execution = PlanExecution(round_id, plan, snapshot, self._backend, self._journal, self._clock)
        closed = self._closed_reason()
        blocks = {index: closed or self._gate.block_reason(op) for index, op in enumerate(plan.operations)}
        for reason in dict.fromkeys(block for block in blocks.values() if block is not None):
            execution.skip([index for index, block in blocks.items() if block == reason], Result.BLOCKED, reason)
        return execution

    def _advance(self, execution: PlanExecution) -> str | None:
        """Do everything that is ready before the next poll; return why the gate is closed, None while it is open."""
        while ready := execution.progress.ready()[:BATCH_SIZE]:
            closed = self._closed_reason()
            if closed is not None:
                return closed
            execution.execute(ready)
            self._tick()
        return None

    def _undo_overdue(self, execution: PlanExecution) -> str | None:
        """Undo the starts that are overdue; return why the gate is closed, None while it is open."""
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
        unfinished = [index for index in range(len(execution.plan.operations)) if index not in execution.done]
        if closed is not None:
            execution.skip(unfinished, Result.BLOCKED, closed)
        else:
            execution.skip(unfinished, Result.OVERTAKEN, "no longer needed, or what it waited for did not happen")
        if execution.stale:
            execution.observe()  # what is stored of a job must not be older than what was done to it
        return ApplyResult(tuple(execution.outcomes), execution.snapshot)

    def _max_duration(self, plan: Plan) -> float:
        """A bound in seconds: the longest lead, then a timeout each for requeues and starts, and some grace."""
        lead = max((operation.lead for operation in plan.operations), default=0)
        return lead + 2 * self._rounds.settle_timeout + _GRACE
