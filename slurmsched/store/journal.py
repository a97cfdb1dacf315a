"""What of a job is ours, not its owner's: its hold, its shape, its nice.

A claim is written in the transaction that journals the intent, so before Slurm is changed. It ends only by evidence:
the job was seen without it, or Slurm knows the job no more. So neither a killed daemon nor a job that could not be read
for a while leaves a hold, a pin or a boost that nobody knows of.

The write-ahead journal: every operation is on disk as an intent before Slurm hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from slurmsched.model import (
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
"""A job that could never be read has no row yet; what it asks for takes the place of this once it can be."""
_EMPTY_REQUEST: Final = encode(Request())
_CLEAR_HOLD: Final = "UPDATE jobs SET held_by_us = 0 WHERE id = ?"
_CLEAR_UPDATE: Final = "UPDATE jobs SET reshaped = 0 WHERE id = ?"
_CLEAR_BOOST: Final = "UPDATE jobs SET boosted = 0 WHERE id = ?"


def mark_changes(database: Database, operations: Iterable[Operation]) -> None:
    """Before these are done: what they would make ours is ours."""
    for operation in operations:
        statement = _MARKS.get(operation.verb)
        if statement is not None:
            database.write(statement, (operation.subject,))
        if operation.verb is Verb.HOLD and operation.reason.code is ReasonCode.SET_ASIDE:
            database.write(_INSERT_UNREAD_JOB, (_EMPTY_REQUEST, operation.subject, operation.subject))


def clear_marks(database: Database, outcomes: Iterable[Outcome]) -> None:
    """After these were read back: what is no longer ours is not."""
    for outcome in outcomes:
        statement = _clearing_statement(outcome)
        if statement is not None:
            database.write(statement, (outcome.operation.subject,))


def _clearing_statement(outcome: Outcome) -> str | None:
    operation, done = outcome.operation, outcome.result is Result.DONE
    match operation.verb:
        case Verb.HOLD | Verb.REQUEUE if outcome.result is Result.REFUSED:
            return _CLEAR_HOLD  # it was seen without one; of any other end the next look at the job tells
        case Verb.RELEASE:
            return _CLEAR_HOLD if done else None
        case Verb.UPDATE if done and operation.reason.code is ReasonCode.GIVE_BACK:
            return _CLEAR_UPDATE
        case Verb.PRIORITIZE if done and operation.reason.code is ReasonCode.GIVE_BACK:
            return _CLEAR_BOOST
        case _:
            return None  # a reshape that was refused may have been applied in part: it stays ours to mend


_NOTIFIED_WITHIN: Final = 86400.0
"""Seconds for which a signal that was sent to a job is looked for."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An operation in the journal: its row, its round and its place in the round's plan."""

    row: int
    round: int
    position: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class RoundStatistics:
    """What a round amounted to: things counted, seconds per stage, requests to the cluster."""

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


class Journal:
    """Rounds and their operations. Every method is on disk when it returns; all raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin_round(self, started: float, mode: str, policy: str, order: str) -> int:
        """A new round's number."""
        return self._database.insert("rounds", {"started": started, "mode": mode, "system": policy, "ordering": order})

    def finish_round(self, round_id: int, finished: float, statistics: RoundStatistics, error: str = "") -> None:
        """What became of it; `error` is empty where nothing went wrong."""
        figures = asdict(statistics)
        columns = ", ".join(f"{name} = :{name}" for name in figures)
        self._database.write(
            f"UPDATE rounds SET finished = :finished, error = :error, {columns} WHERE id = :id",  # noqa: S608 own names
            {**figures, "finished": finished, "error": error, "id": round_id},
        )

    def close_interrupted_rounds(self, at: float) -> int:
        """Rounds that a killed process left open are marked so; how many there were."""
        with self._database.transaction():
            interrupted = self._database.rows("SELECT id FROM rounds WHERE finished IS NULL")
            self._database.write(
                "UPDATE rounds SET finished = ?, error = 'interrupted: the process was ended' WHERE finished IS NULL",
                (at,),
            )
        return len(interrupted)

    def record_intents(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], at: float
    ) -> tuple[JournalEntry, ...]:
        """These operations, each with its place in the plan, are about to be done together."""
        with self._database.transaction():
            entries = self._insert_operations(round_id, numbered, result=Result.INTENDED.value, intended=at)
            mark_changes(self._database, (entry.operation for entry in entries))
        return entries

    def record_skipped(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], result: Result, detail: str, at: float
    ) -> None:
        """These were planned and are not done, for the reason in `detail`.

        Of blocked ones only the latest round's are kept: they come again each round.
        """
        with self._database.transaction():
            self._database.write(
                "DELETE FROM operations WHERE result = ? AND round < ?", (Result.BLOCKED.value, round_id)
            )
            self._insert_operations(round_id, numbered, result=result.value, detail=detail, intended=at, finished=at)

    def record_outcomes(self, outcomes: Sequence[tuple[JournalEntry, Outcome]], at: float) -> None:
        """What the cluster showed of each."""
        with self._database.transaction():
            self._database.write_many(
                "UPDATE operations SET result = ?, commands = ?, detail = ?, finished = ? WHERE id = ?",
                [
                    (outcome.result.value, json.dumps(outcome.commands), outcome.detail, at, entry.row)
                    for entry, outcome in outcomes
                ],
            )
            clear_marks(self._database, (outcome for _, outcome in outcomes))

    def mark_undone(self, entry: JournalEntry, detail: str) -> None:
        """It was done and has been taken back since, by operations of their own; `detail` is why, in Slurm's words."""
        self._database.write(
            "UPDATE operations SET result = ?, detail = ? WHERE id = ?", (Result.UNDONE.value, detail, entry.row)
        )

    def open_intents(self) -> tuple[JournalEntry, ...]:
        """What was about to be done when a process was killed, oldest first. One that cannot be read is given up."""
        rows = self._database.rows("SELECT * FROM operations WHERE result = ? ORDER BY id", (Result.INTENDED.value,))
        entries = self._database.unreadable_rows.parse_each("operations", "id", _entry, rows)
        lost = {row["id"] for row in rows} - {entry.row for entry in entries}
        if lost:
            self._database.write_many(
                "UPDATE operations SET result = ?, detail = 'cannot be read back' WHERE id = ?",
                [(Result.FAILED.value, row) for row in lost],
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
    """The running jobs of the snapshot that were told in this run of theirs to write a checkpoint, and for whom they
    give way in a later round. A signal is in the journal before it is sent, so a killed daemon forgets none."""
    rows = database.rows(
        "SELECT subject, finished, reason FROM operations"
        " WHERE verb = 'notify' AND result = 'done' AND finished > ? ORDER BY finished, id",
        (snapshot.time - _NOTIFIED_WITHIN,),
    )
    told: dict[JobId, NotifiedJob] = {}
    for row in rows:
        job = snapshot.jobs_by_id.get(row["subject"])
        if job is None or job.state is not JobState.RUNNING or (job.start_time or 0.0) > row["finished"]:
            continue
        newcomers = _newcomers(row["reason"])
        told.pop(job.id, None)
        if newcomers:
            told[job.id] = NotifiedJob(row["finished"], newcomers)
    return told


def _newcomers(reason: str) -> tuple[JobId, ...]:
    """Nobody where the requeue was part of the same round, or where the row cannot be read."""
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
    """The operation as far as a journal needs it: what it waited for is no longer of interest."""
    known = {name: json.loads(text(row, name)) for name in ("before", "after", "reason")}
    return decode(Operation, json.dumps({"verb": text(row, "verb"), "subject": text(row, "subject"), **known}))
