"""Applies a plan: the only code that changes the cluster.

Executes the operations that are ready, waits and polls, until each start has happened or was undone. Which operations
are ready, settled or overdue is decided by `rounds.progress`; the gate is asked before each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.batches import (
    BATCH_SECONDS,
    SMALL_BATCH,
    BatchPace,
    batch_size,
    begun_in_time,
    end_of_starts,
    left_over,
)
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.log import NO_LOG, DaemonLog
from slurmsched.model import (
    Block,
    BlockCause,
    Hold,
    Job,
    JobId,
    JobState,
    OpenStart,
    Operation,
    Outcome,
    Plan,
    Result,
    Snapshot,
    Verb,
)
from slurmsched.model.reasons import pluralise
from slurmsched.rounds.plan_structure import PlanStructure
from slurmsched.rounds.progress import (
    FinishedOperation,
    PlanProgress,
    open_starts,
    overdue_starts,
    patience,
    promised_allocations,
    undo_overdue_starts,
)
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

    def record_blocked(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], block: Block, at: float, /
    ) -> None:
        """Record planned operations that may not be executed."""

    def record_outcomes(self, became: Sequence[tuple[JournalEntry, Outcome]], at: float, /) -> None:
        """Record the outcome of each operation."""

    def mark_undone(self, entry: JournalEntry, detail: str, /) -> None:
        """Record that the operation was done and has been undone."""


class OperationGate(Protocol):
    """Whether anything may be changed now, asked before each batch."""

    def closed_reason(self) -> Block | None:
        """Why nothing at all may be changed; None while the gate is open."""

    def block_reason(self, operation: Operation, /) -> Block | None:
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
    log: DaemonLog = NO_LOG
    done: dict[int, FinishedOperation] = field(default_factory=dict)
    entries: dict[int, JournalEntry] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    undone: set[tuple[Verb, str]] = field(default_factory=set)
    stale: bool = False
    """Whether something was executed since the snapshot was taken."""
    checkpointed: frozenset[JobId] = frozenset()
    """Jobs that were notified and report that their checkpoint is written."""
    returned: dict[JobId, float] = field(default_factory=dict)
    """When a job whose newcomer did not start was released to return to its place."""
    seen_at: float | None = None
    """When the snapshot was taken, by `now`."""
    structure: PlanStructure = field(init=False)
    _offset: float = 0.0

    def __post_init__(self) -> None:
        self.structure = PlanStructure(self.plan)
        self._offset = self.clock.now() - self.clock.monotonic()

    @property
    def now(self) -> float:
        """Unix seconds by the monotonic clock since the start: setting the wall clock does not cut leads short."""
        return self._offset + self.clock.monotonic()

    @property
    def progress(self) -> PlanProgress:
        """The progress of the plan."""
        return PlanProgress(
            self.plan,
            self.done,
            self.snapshot,
            self.now,
            self.checkpointed,
            fresh=not self.stale,
            seen_at=self.seen_at,
            structure=self.structure,
        )

    @property
    def notified(self) -> tuple[Job, ...]:
        """Jobs that were notified to write a checkpoint and are not requeued yet."""
        requeued = {subject for subject, index in self.progress.requeues.items() if index in self.done}
        finished = (self.plan.operations[index] for index in self.done)
        names = dict.fromkeys(op.subject for op in finished if op.verb is Verb.NOTIFY and op.subject not in requeued)
        return tuple(self.snapshot.jobs_by_id[name] for name in names if name in self.snapshot.jobs_by_id)

    def observe(self) -> None:
        """Poll the cluster."""
        self.see(self.backend.observe())

    def see(self, snapshot: Snapshot) -> None:
        """Go on from this poll."""
        self.snapshot, self.stale, self.seen_at = snapshot, False, min(self.now, snapshot.time)

    @property
    def step_count(self) -> int:
        """Number of operations that are finished or undone; grows while there is progress."""
        return len(self.done) + len(self.undone)

    def block(self, indices: Iterable[int], block: Block) -> None:
        """Record that these operations of the plan may not be executed."""
        numbered = [(index, self.plan.operations[index]) for index in indices]
        if numbered:
            self.journal.record_blocked(self.round_id, numbered, block, self.clock.now())
        self._leave_out(numbered, Result.BLOCKED, block.sentence, block.cause)

    def skip(self, indices: Iterable[int], result: Result, detail: str) -> None:
        """Record that these operations of the plan are not executed."""
        numbered = [(index, self.plan.operations[index]) for index in indices]
        if numbered:
            self.journal.record_skipped(self.round_id, numbered, result, detail, self.clock.now())
        self._leave_out(numbered, result, detail)

    def _leave_out(
        self, numbered: Sequence[tuple[int, Operation]], result: Result, detail: str, cause: BlockCause | None = None
    ) -> None:
        for index, operation in numbered:
            self.done[index] = FinishedOperation(result, self.now)
            self.outcomes.append(Outcome(operation, result, self.backend.commands(operation), detail, cause))

    def execute(self, indices: Sequence[int]) -> None:
        """Execute these operations of the plan as one batch."""
        executed = self._execute([(index, self.plan.operations[index]) for index in indices])
        for entry, outcome in executed:
            self.entries[entry.position] = entry
            self.done[entry.position] = FinishedOperation(outcome.result, self.now)

    def undo(self, operations: Sequence[Operation], overdue: Iterable[int]) -> None:
        """Execute operations that undo the starts that did not happen; one is undone once its job is held again."""
        first = len(self.plan.operations) + len(self.undone)
        self.undone |= {(operation.verb, operation.subject) for operation in operations}
        executed = self._execute(list(enumerate(operations, first)))
        held = {o.operation.subject for _, o in executed if o.operation.verb is Verb.HOLD and o.result is Result.DONE}
        for index in overdue:
            job = self.snapshot.jobs_by_id.get(self.plan.operations[index].subject)
            by_owner = job is not None and job.hold is Hold.USER
            if self.progress.succeeded(index) and (by_owner or self.plan.operations[index].subject in held):
                self._mark_undone(index)
        for _, outcome in executed:
            if outcome.operation.verb is Verb.RELEASE and outcome.result is Result.DONE:
                self.returned[outcome.operation.subject] = self.now

    def open_starts(self, timeout: float) -> dict[JobId, OpenStart]:
        """The starts that are still awaited, and the jobs that return to their places, those for `timeout` seconds."""
        returning = {
            job.id: OpenStart(promised_allocations(job))
            for job in self.snapshot.jobs_in_state(JobState.PENDING)
            if job.id in self.returned
            and (self.stale or job.hold is Hold.NONE)
            and self.now - self.returned[job.id] < patience(job, self.snapshot, timeout)
        }
        return {**open_starts(self.progress), **returning}

    def _execute(self, numbered: Sequence[tuple[int, Operation]]) -> Sequence[tuple[JournalEntry, Outcome]]:
        if not numbered:
            return ()
        entries = self.journal.record_intents(self.round_id, numbered, self.clock.now())
        self.stale = True
        executed = tuple(zip(entries, self.backend.execute([operation for _, operation in numbered]), strict=True))
        self.journal.record_outcomes(executed, self.clock.now())
        self._add(outcome for _, outcome in executed)
        return executed

    def _add(self, outcomes: Iterable[Outcome]) -> None:
        new = tuple(outcomes)
        self.outcomes += new
        self.log.operations(new, self.snapshot)

    def _mark_undone(self, index: int) -> None:
        operation = self.plan.operations[index]
        job = self.snapshot.jobs_by_id.get(operation.subject)
        reason = "" if job is None else job.reason
        self.journal.mark_undone(self.entries[index], reason)
        self.done[index] = FinishedOperation(Result.UNDONE, self.now)
        self._add([Outcome(operation, Result.UNDONE, detail=reason)])


OUT_OF_TIME: Final = Block(BlockCause.OUT_OF_TIME, "the round's time is over: the next one goes on")
DAEMON_STOPS: Final = Block(BlockCause.STOPPING, "the daemon is stopping")

_BACKOFF_FACTOR: Final = 1.5
_MAX_INTERVAL: Final = 15.0
"""Seconds; each poll without progress is followed by a longer wait, up to this."""
_FIRST_LOOK: Final = 0.5
"""Seconds from what was done to the first poll: by then Slurm has tried what was released, and what it does not start
is taken back before it costs others time."""

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
    `checkpointed` returns are requeued before their lead is over. `round_began` is the monotonic time from which the
    time for holds and starts counts; None for that at which each plan is applied.

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
        log: DaemonLog = NO_LOG,
        round_began: float | None = None,
    ) -> None:
        self.last_look = 0.0
        """Seconds that a round takes to poll after its last change, and to record that."""
        self.changed_at = clock.monotonic()
        """When the last batch ended, by the monotonic clock."""
        self._backend = backend
        self._journal = journal
        self._gate = gate
        self._clock = clock
        self._round_began = round_began
        self._rounds = rounds
        self._tick = tick
        self._stopping = stopping
        self._checkpointed = checkpointed
        self._log = log

    def apply(self, round_id: int, plan: Plan, snapshot: Snapshot) -> ApplyResult:
        """Do what the gate allows until the plan has settled; `snapshot` is the one that the plan was made from.

        Jobs that Slurm has not started on free resources when the round's time is over are not waited for: they stay
        released, and the next round sees what became of them.
        """
        end = self._end_of_starts()
        opened = self.open(round_id, plan, snapshot)
        while not opened.settled:
            execution, left = opened.execution, end - self._clock.monotonic()
            if left <= 0 and not execution.stale and (waiting := execution.progress.left_to_slurm()):
                jobs, have = pluralise(waiting, "released job"), "has" if waiting == 1 else "have"
                self._log.event(f"{jobs} {have} not started yet: the next round sees what became of them", verb="apply")
                break
            self._tick()
            self._clock.sleep(min(opened.wait, left) if left > 0 else 0.0 if execution.stale else opened.wait)
            opened.advance(self._backend.observe())
        return opened.finish()

    def open(self, round_id: int, plan: Plan, snapshot: Snapshot) -> OpenPlan:
        """Do what the gate allows at once; the rest is done as the plan, which stays open, is advanced."""
        opened = OpenPlan(self, self._begin(round_id, plan, snapshot), self._rounds)
        opened.advance(snapshot)
        return opened

    def apply_without_waiting(self, round_id: int, plan: Plan, snapshot: Snapshot) -> ApplyResult:
        """Do what the gate allows, without waiting for Slurm to start what is released."""
        execution = self._begin(round_id, plan, snapshot)
        return self.finish(execution, self.advance(execution))

    def _begin(self, round_id: int, plan: Plan, snapshot: Snapshot) -> PlanExecution:
        """Begin with the operations that may not be done recorded as BLOCKED; their dependents are then hopeless."""
        execution = PlanExecution(round_id, plan, snapshot, self._backend, self._journal, self._clock, self._log)
        closed = self._closed_reason()
        blocks = {index: closed or self._gate.block_reason(op) for index, op in enumerate(plan.operations)}
        for reason in dict.fromkeys(block for block in blocks.values() if block is not None):
            execution.block([index for index, block in blocks.items() if block == reason], reason)
        return execution

    def advance(self, execution: PlanExecution) -> Block | None:
        """Do everything that is ready before the next poll; return why the gate is closed, None while it is open.

        Holds and starts that cannot be begun and finished before the round's time is over are left to the next round.
        """
        most = batch_size(len(execution.snapshot.jobs), self._backend.operation_seconds)
        if most < min(SMALL_BATCH, len(execution.plan.operations)):
            self._log.once(
                f"slurmctld limits the rate of our requests (rl_enable): {most} changes are sent in"
                f" {BATCH_SECONDS:g} s, and what does not fit into a round is left to the next"
            )
        size, end, pace = min(most, SMALL_BATCH), self._end_of_starts(), BatchPace()
        while ready := (progress := execution.progress).ready(size):
            if (closed := self._closed_reason()) is not None:
                return closed
            began, begins = self._clock.monotonic(), progress.postponable()
            batch = begun_in_time(ready, begins, pace.left(end - began), pace.each)
            if len(batch) < len(ready) and begins.keys().isdisjoint(batch):
                execution.block(sorted(begins), OUT_OF_TIME)
                self._log.event(f"{left_over(execution.outcomes)} to the next round: its time is over", verb="apply")
                continue
            execution.execute(batch)
            cost, self.changed_at = execution.structure.cost_of(batch), self._clock.monotonic()
            pace.learn(cost, self.changed_at - began)
            size = pace.next_size(cost, most, end - self.changed_at)
            self._tick()
        return None

    def _end_of_starts(self) -> float:
        """The monotonic time from which this round begins no more starts."""
        now, began = self._clock.monotonic(), self._round_began
        return end_of_starts(now if began is None else began, now, self._rounds.apply_timeout, self.last_look)

    def undo_overdue(self, execution: PlanExecution) -> Block | None:
        """Undo the starts that are overdue; return why the gate is closed, None while it is open."""
        progress, timeout = execution.progress, self._rounds.settle_timeout
        overdue = overdue_starts(progress, timeout)
        undoing = [
            op
            for op in undo_overdue_starts(progress, timeout).operations
            if (op.verb, op.subject) not in execution.undone and self._gate.block_reason(op) is None
        ]
        closed = self._closed_reason() if undoing else None
        if overdue and closed is None:
            execution.undo(undoing, overdue)
        return closed

    def _closed_reason(self) -> Block | None:
        return DAEMON_STOPS if self._stopping() else self._gate.closed_reason()

    def finish(self, execution: PlanExecution, closed: Block | None) -> ApplyResult:
        """Record the operations that are not done any more."""
        unfinished = [index for index in range(len(execution.plan.operations)) if index not in execution.done]
        if closed is not None:
            execution.block(unfinished, closed)
        else:
            execution.skip(unfinished, Result.OVERTAKEN, "no longer needed, or what it waited for did not happen")
        if execution.stale:
            execution.observe()  # what is stored of a job must not be older than what was done to it
        return ApplyResult(tuple(execution.outcomes), execution.snapshot)

    def checkpointed(self, execution: PlanExecution) -> frozenset[JobId]:
        """The jobs that the plan notified and that report that their checkpoint is written."""
        return self._checkpointed(execution.notified)


@dataclass(slots=True)
class OpenPlan:
    """A plan that is being applied and may outlast its round: the next round decides without waiting for it.

    What it promises to jobs that do not run yet is in `open_starts`, for the rounds in between.
    """

    applier: Applier
    execution: PlanExecution
    rounds: RoundSettings
    after: Callable[[ApplyResult, bool], None] = lambda _result, _settled: None
    """Called with what was done since the last call, and whether the plan has settled."""
    wait: float = 0.0
    """Seconds until the next look at the cluster."""
    _closed: Block | None = None
    _deadline: float = 0.0
    _told: int = 0

    def __post_init__(self) -> None:
        self.wait = self._first_wait
        lead = max((operation.lead for operation in self.execution.plan.operations), default=0)
        self._deadline = self.execution.now + lead + 2 * self.rounds.settle_timeout + _GRACE

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do or to wait for, or no more is done because the gate is closed or time is up."""
        return self.over or self.execution.progress.settled()

    @property
    def over(self) -> bool:
        """Whether no more is done whatever is left, because the gate is closed or time is up."""
        return self._closed is not None or self.execution.now >= self._deadline

    @property
    def open_starts(self) -> dict[JobId, OpenStart]:
        """What is promised to jobs that do not run yet."""
        return self.execution.open_starts(self.rounds.settle_timeout)

    def advance(self, snapshot: Snapshot) -> None:
        """Do what can be done now, and undo the starts that did not happen; `snapshot` is a poll of this moment."""
        execution, steps = self.execution, self.execution.step_count
        execution.see(snapshot)
        execution.checkpointed = self.applier.checkpointed(execution)
        self._closed = self.applier.advance(execution) or self.applier.undo_overdue(execution)
        usual = self.rounds.settle_interval
        if execution.step_count > steps:
            self.wait = self._first_wait
        elif self.wait < usual:
            self.wait = min(2 * self.wait, usual)
        else:
            self.wait = min(self.wait * _BACKOFF_FACTOR, max(_MAX_INTERVAL, self.wait))

    @property
    def _first_wait(self) -> float:
        return min(_FIRST_LOOK, self.rounds.settle_interval)

    def finish(self, closed: Block | None = None) -> ApplyResult:
        """Record what is not done any more, with `closed` as the reason if one is given."""
        return self.applier.finish(self.execution, self._closed or closed)

    def report(self, *, settled: bool = False) -> ApplyResult:
        """Tell `after` what was done since the last time, with the cluster as it is now, and return that."""
        if self.execution.stale:
            self.execution.observe()
        news = ApplyResult(tuple(self.execution.outcomes[self._told :]), self.execution.snapshot)
        self._told = len(self.execution.outcomes)
        self.after(news, settled)
        return news


def advance_plans(plans: list[OpenPlan], snapshot: Snapshot) -> tuple[Outcome, ...]:
    """Advance open plans, and finish and remove those that have settled; return what was done. Raises
    UnreachableError, StoreError."""
    outcomes: list[Outcome] = []
    for opened in tuple(plans):
        told = len(opened.execution.outcomes)
        opened.advance(snapshot)
        if opened.over or (opened.settled and not opened.open_starts):
            plans.remove(opened)
            opened.finish()
            opened.report(settled=True)
        elif len(opened.execution.outcomes) > told:
            opened.report()
        outcomes += opened.execution.outcomes[told:]
        snapshot = opened.execution.snapshot  # the next plan must not go on from before what this one did
    return tuple(outcomes)
