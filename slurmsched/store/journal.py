"""The write-ahead journal, and the events of jobs for `synsched history`.

Every operation is on disk as an intent before Slurm is changed.

The same transaction marks what the operation changes about the job (hold, request, nice) as ours. A mark is cleared
only on evidence: the job was seen without the change, or Slurm no longer knows the job. So neither a killed daemon nor
a job that was unreadable for a while leaves a hold, a node list or a priority in Slurm that is recorded nowhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from slurmsched.model import (
    Block,
    BlockCause,
    EncodingError,
    JobId,
    JobState,
    NotifiedJob,
    Operation,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Result,
    Snapshot,
    Verb,
    decode,
    encode,
    to_plain,
)
from slurmsched.rounds.checkpoints import NEWCOMERS
from slurmsched.store.database import Database
from slurmsched.store.rows import DatabaseRow, integer, text

_MARKS: Final = {
    Verb.HOLD: "UPDATE jobs SET held_by_us = 1 WHERE id = ?",
    Verb.REQUEUE: "UPDATE jobs SET held_by_us = 1 WHERE id = ?",
    Verb.UPDATE: "UPDATE jobs SET reshaped = 1 WHERE id = ?",
    Verb.PRIORITIZE: "UPDATE jobs SET boosted = 1 WHERE id = ?",
}
_INSERT_UNREAD_JOB: Final = (
    "INSERT INTO jobs (id, owner, first_seen, last_seen, state, original, held_by_us, sentence)"
    " SELECT job, owner, since, since, 'pending', ?, 1, 'job ' || job || ' is set aside: ' || reason"
    " FROM set_aside WHERE job = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?)"
)
"""Adds a row for a job that was never readable; the empty request in it is replaced once the job is."""
_EMPTY_REQUEST: Final = encode(Request())
_CLEAR_HOLD: Final = "UPDATE jobs SET held_by_us = 0 WHERE id = ?"
_CLEAR_UPDATE: Final = "UPDATE jobs SET reshaped = 0 WHERE id = ?"
_CLEAR_BOOST: Final = "UPDATE jobs SET boosted = 0 WHERE id = ?"


def mark_changes(database: Database, operations: Iterable[Operation]) -> None:
    """Mark in `jobs` what the operations are about to change. Raises StoreError."""
    for operation in operations:
        statement = _MARKS.get(operation.verb)
        if statement is not None:
            database.write(statement, (operation.subject,))
        if operation.verb is Verb.HOLD and operation.reason.code is ReasonCode.SET_ASIDE:
            database.write(_INSERT_UNREAD_JOB, (_EMPTY_REQUEST, operation.subject, operation.subject))


def clear_marks(database: Database, outcomes: Iterable[Outcome]) -> None:
    """Clear the marks of changes that the outcomes show to be gone. Raises StoreError."""
    for outcome in outcomes:
        statement = _clearing_statement(outcome)
        if statement is not None:
            database.write(statement, (outcome.operation.subject,))


def _clearing_statement(outcome: Outcome) -> str | None:
    operation, done = outcome.operation, outcome.result is Result.DONE
    match operation.verb:
        case Verb.HOLD | Verb.REQUEUE if outcome.result is Result.REFUSED:
            return _CLEAR_HOLD  # it was seen without a hold; after any other result the next poll decides
        case Verb.RELEASE:
            return _CLEAR_HOLD if done else None
        case Verb.UPDATE if done and operation.reason.code is ReasonCode.GIVE_BACK:
            return _CLEAR_UPDATE
        case Verb.PRIORITIZE if done and operation.reason.code is ReasonCode.GIVE_BACK:
            return _CLEAR_BOOST
        case _:
            return None  # a refused update may have been applied in part: it stays marked, to be given back


_NOTIFIED_WITHIN: Final = 86400.0
"""Maximum age of a signal to a job that is still considered, in seconds."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An operation in the journal: its row id, its round and its index in the round's plan."""

    row: int
    round: int
    position: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class RoundStatistics:
    """Statistics of a round: counts of nodes and jobs, seconds per stage, requests to Slurm (`reads`, `writes`).

    Of the cluster's `gpus` some are in use, in parts too, and some idle on nodes that take no jobs (`gpus_down`).
    """

    nodes: int = 0
    jobs: int = 0
    managed: int = 0
    running: int = 0
    waiting: int = 0
    observe_s: float | None = None
    decide_s: float | None = None
    plan_s: float | None = None
    apply_s: float | None = None
    reads: int = 0
    writes: int = 0
    gpus: int = 0
    gpus_used: float = 0.0
    gpus_down: int = 0


@dataclass(slots=True)
class ActivityCounts:
    """What was recorded since the database was opened, for the metrics: operations by verb and result (one that was
    undone also counts as done), blocked ones by cause, events of jobs by kind, and refused starts."""

    operations: Counter[tuple[Verb, Result]] = field(default_factory=Counter)
    blocked: Counter[BlockCause] = field(default_factory=Counter)
    events: Counter[JobEventKind] = field(default_factory=Counter)
    refused_starts: int = 0


class Journal:
    """Rounds and their operations. Changes are on disk when a method returns; all raise StoreError."""

    def __init__(self, database: Database, counts: ActivityCounts | None = None) -> None:
        self._database = database
        self._counts = counts or ActivityCounts()

    def begin_round(self, started: float, mode: str, policy: str, order: str) -> int:
        """Record the start of a round (unix seconds); returns its number."""
        return self._database.insert("rounds", {"started": started, "mode": mode, "system": policy, "ordering": order})

    def finish_round(self, round_id: int, finished: float, statistics: RoundStatistics, error: str = "") -> None:
        """Record the end of a round (unix seconds); `error` is empty for a round that succeeded."""
        figures = asdict(statistics)
        columns = ", ".join(f"{name} = :{name}" for name in figures)
        self._database.write(
            f"UPDATE rounds SET finished = :finished, error = :error, {columns} WHERE id = :id",  # noqa: S608 own names
            {**figures, "finished": finished, "error": error, "id": round_id},
        )

    def close_interrupted_rounds(self, at: float) -> int:
        """Mark the rounds that a killed process left open as interrupted; returns how many there were."""
        with self._database.transaction():
            interrupted = self._database.rows("SELECT id FROM rounds WHERE finished IS NULL")
            self._database.write(
                "UPDATE rounds SET finished = ?, error = 'interrupted: the process was killed' WHERE finished IS NULL",
                (at,),
            )
        return len(interrupted)

    def record_intents(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], at: float
    ) -> tuple[JournalEntry, ...]:
        """Record that these operations, each with its index in the plan, are about to be executed together."""
        with self._database.transaction():
            entries = self._insert_operations(round_id, numbered, result=Result.INTENDED.value, intended=at)
            mark_changes(self._database, (entry.operation for entry in entries))
        return entries

    def record_skipped(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], result: Result, detail: str, at: float
    ) -> None:
        """Record planned operations that are not executed, for the reason in `detail`."""
        skipped = tuple(numbered)
        self._insert_skipped(round_id, skipped, result, detail, at)
        self._counts.operations.update((operation.verb, result) for _, operation in skipped)

    def record_blocked(self, round_id: int, numbered: Iterable[tuple[int, Operation]], block: Block, at: float) -> None:
        """Record planned operations that may not be executed."""
        blocked = tuple(numbered)
        self._insert_skipped(round_id, blocked, Result.BLOCKED, block.sentence, at)
        self._counts.operations.update((operation.verb, Result.BLOCKED) for _, operation in blocked)
        self._counts.blocked[block.cause] += len(blocked)

    def _insert_skipped(
        self, round_id: int, numbered: Sequence[tuple[int, Operation]], result: Result, detail: str, at: float
    ) -> None:
        """Blocked operations are kept for the latest round only: each round plans them again."""
        with self._database.transaction():
            self._database.write(
                "DELETE FROM operations WHERE result = ? AND round < ?", (Result.BLOCKED.value, round_id)
            )
            self._insert_operations(round_id, numbered, result=result.value, detail=detail, intended=at, finished=at)

    def record_outcomes(self, outcomes: Sequence[tuple[JournalEntry, Outcome]], at: float) -> None:
        """Record the result of each operation, and clear the marks that it shows to be gone."""
        with self._database.transaction():
            self._database.write_many(
                "UPDATE operations SET result = ?, commands = ?, detail = ?, finished = ? WHERE id = ?",
                [
                    (outcome.result.value, json.dumps(outcome.commands), outcome.detail, at, entry.row)
                    for entry, outcome in outcomes
                ],
            )
            clear_marks(self._database, (outcome for _, outcome in outcomes))
        self._counts.operations.update((outcome.operation.verb, outcome.result) for _, outcome in outcomes)

    def mark_undone(self, entry: JournalEntry, detail: str) -> None:
        """Record that an operation that succeeded was undone since; `detail` is why, in Slurm's words."""
        self._database.write(
            "UPDATE operations SET result = ?, detail = ? WHERE id = ?", (Result.UNDONE.value, detail, entry.row)
        )
        self._counts.operations[entry.operation.verb, Result.UNDONE] += 1

    def open_intents(self) -> tuple[JournalEntry, ...]:
        """The operations that a killed process left without a result, oldest first. Unreadable ones become failed."""
        rows = self._database.rows("SELECT * FROM operations WHERE result = ? ORDER BY id", (Result.INTENDED.value,))
        entries = self._database.unreadable_rows.parse_each("operations", "id", _entry, rows)
        unreadable = {row["id"] for row in rows} - {entry.row for entry in entries}
        if unreadable:
            self._database.write_many(
                "UPDATE operations SET result = ?, detail = 'cannot be read back' WHERE id = ?",
                [(Result.FAILED.value, row) for row in unreadable],
            )
        return entries

    def _insert_operations(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], **state: str | float | None
    ) -> tuple[JournalEntry, ...]:
        return tuple(
            JournalEntry(
                self._database.insert(
                    "operations", {"round": round_id, "position": position, **_columns(operation), **state}
                ),
                round_id,
                position,
                operation,
            )
            for position, operation in numbered
        )


def notified_jobs(database: Database, snapshot: Snapshot) -> Mapping[JobId, NotifiedJob]:
    """The running jobs that were signalled to checkpoint in their current run, with the jobs that they are to be
    evicted for. A signal is in the journal before it is sent, so a killed daemon forgets none. Raises StoreError."""
    rows = database.rows(
        "SELECT subject, finished, reason FROM operations"
        " WHERE verb = 'notify' AND result = 'done' AND finished > ? ORDER BY finished, id",
        (snapshot.time - _NOTIFIED_WITHIN,),
    )
    notified: dict[JobId, NotifiedJob] = {}
    for row in rows:
        job = snapshot.jobs_by_id.get(row["subject"])
        if job is None or job.state is not JobState.RUNNING or (job.start_time or 0.0) > row["finished"]:
            continue
        newcomers = _newcomers(row["reason"])
        notified.pop(job.id, None)
        if newcomers:
            notified[job.id] = NotifiedJob(row["finished"], newcomers)
    return notified


def _newcomers(reason: str) -> tuple[JobId, ...]:
    """The jobs to be started in its place; empty if the requeue was in the same round or the row is unreadable."""
    try:
        details = decode(Reason, reason).details
    except EncodingError:
        return ()
    return tuple(filter(None, str(details.get(NEWCOMERS, "")).split(",")))


def _columns(operation: Operation) -> dict[str, str | None]:
    data, undo = to_plain(operation), operation.undo()
    return {
        "verb": operation.verb.value,
        "subject": operation.subject,
        "before": json.dumps(data["before"]),
        "after": json.dumps(data["after"]),
        "reason": encode(operation.reason),
        "sentence": operation.sentence,
        "undo": None if undo is None else encode(undo),
    }


def _entry(row: DatabaseRow) -> JournalEntry:
    return JournalEntry(row["id"], integer(row, "round"), integer(row, "position"), _operation(row))


def _operation(row: DatabaseRow) -> Operation:
    """The operation without its waiting conditions, which are not stored. Raises ValueError, EncodingError."""
    values = {name: json.loads(text(row, name)) for name in ("before", "after", "reason")}
    return decode(Operation, json.dumps({"verb": text(row, "verb"), "subject": text(row, "subject"), **values}))


class JobEventKind(StrEnum):
    """What happened to a job."""

    SEEN = "seen"
    STARTED = "started"
    MOVED = "moved"
    DISPLACED = "displaced"
    UPDATED = "reshaped"
    RELEASED = "released"
    ENDED = "ended"
    REFUSED = "refused"
    HINT = "hint"
    UNDONE = "undone"
    DEVICE = "device"
    OVERRULED = "overruled"
    """Our hold was released by a person or another program."""
    REQUEUED = "requeued"
    """A running job was requeued, and not by us."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event at a time (unix seconds); `code` is the reason code of the decision behind it, empty without one."""

    at: float
    job: JobId
    kind: JobEventKind
    sentence: str
    code: str = ""


def record_events(database: Database, round_id: int | None, events: Iterable[JobEvent]) -> None:
    """Append the events to the job history; `round_id` is None outside a round. Raises StoreError."""
    database.write_many(
        "INSERT INTO events (at, round, job, kind, code, sentence) VALUES (?, ?, ?, ?, ?, ?)",
        [(event.at, round_id, event.job, event.kind.value, event.code, event.sentence) for event in events],
    )


def events_of_outcomes(
    outcomes: Iterable[Outcome], targets: Iterable[JobId], at: float, done: Mapping[tuple[str, JobId], float]
) -> tuple[JobEvent, ...]:
    """The events that operations caused, each at the time in `done` by verb and job, else at `at` (unix seconds). A job
    that was evicted and has a target in the same round was moved."""
    allocated, events = frozenset(targets), list[JobEvent]()
    for outcome in outcomes:
        key = outcome.operation.verb.value, outcome.operation.subject
        event = _event(outcome, allocated, done.get(key, at) if outcome.result is Result.DONE else at)
        events += [event] if event is not None else []
    return tuple(events)


def _event(outcome: Outcome, allocated: frozenset[JobId], at: float) -> JobEvent | None:
    operation, job = outcome.operation, outcome.operation.subject
    sentence, code = operation.reason.sentence, operation.reason.code.value
    match outcome.result, operation.verb:
        case _, Verb.WEIGH | Verb.CONFIGURE:
            return None
        case Result.DONE, Verb.REQUEUE:
            return JobEvent(at, job, JobEventKind.MOVED if job in allocated else JobEventKind.DISPLACED, sentence, code)
        case Result.DONE, (Verb.UPDATE | Verb.RELEASE) as verb:
            return JobEvent(
                at, job, JobEventKind.UPDATED if verb is Verb.UPDATE else JobEventKind.RELEASED, sentence, code
            )
        case ((Result.REFUSED | Result.FAILED), verb):
            return JobEvent(
                at, job, JobEventKind.REFUSED, f"{verb.value} was {outcome.result.value}: {outcome.detail}", code
            )
        case Result.UNDONE, verb:
            return JobEvent(at, job, JobEventKind.UNDONE, f"{verb.value} was undone: {sentence}", code)
        case _:
            return None
