"""The write-ahead journal: every operation is on disk as an intent before Slurm hears of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from slurmsched.model import (
    EncodingError,
    JobId,
    JobState,
    Notified,
    Operation,
    Outcome,
    Reason,
    Result,
    Snapshot,
    decode,
    encode,
    plain,
)
from slurmsched.rounds.notified import NEWCOMERS
from slurmsched.store.claims import claim, resolve
from slurmsched.store.columns import Row, text, whole
from slurmsched.store.database import Database

__all__ = ["Entry", "Journal", "Tally", "notified"]

_LONGEST_AGO: Final = 86400.0
"""Seconds for which a signal that was sent to a job is looked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation in the journal: its row, its round and its place in the round's plan."""

    row: int
    round: int
    position: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class Tally:
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

    def begin_round(self, started: float, mode: str, system: str, ordering: str) -> int:
        """A new round's number."""
        return self._database.insert(
            "rounds", {"started": started, "mode": mode, "system": system, "ordering": ordering}
        )

    def finish_round(self, round_id: int, finished: float, tally: Tally, error: str = "") -> None:
        """What became of it; `error` is empty where nothing went wrong."""
        figures = asdict(tally)
        columns = ", ".join(f"{name} = :{name}" for name in figures)
        self._database.write(
            f"UPDATE rounds SET finished = :finished, error = :error, {columns} WHERE id = :id",  # noqa: S608 own names
            {**figures, "finished": finished, "error": error, "id": round_id},
        )

    def close_interrupted(self, at: float) -> int:
        """Rounds that a killed process left open are marked so; how many there were."""
        with self._database.transaction():
            interrupted = self._database.rows("SELECT id FROM rounds WHERE finished IS NULL")
            self._database.write(
                "UPDATE rounds SET finished = ?, error = 'interrupted: the process was ended' WHERE finished IS NULL",
                (at,),
            )
        return len(interrupted)

    def intend(self, round_id: int, numbered: Iterable[tuple[int, Operation]], at: float) -> tuple[Entry, ...]:
        """These operations, each with its place in the plan, are about to be done together."""
        with self._database.transaction():
            entries = self._enter(round_id, numbered, result=Result.INTENDED.value, intended=at)
            claim(self._database, (entry.operation for entry in entries))
        return entries

    def forgo(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], became: Result, detail: str, at: float
    ) -> None:
        """These were planned and are not done, for the reason in `detail`.

        Of blocked ones only the latest round's are kept: they come again each round.
        """
        with self._database.transaction():
            self._database.write(
                "DELETE FROM operations WHERE result = ? AND round < ?", (Result.BLOCKED.value, round_id)
            )
            self._enter(round_id, numbered, result=became.value, detail=detail, intended=at, finished=at)

    def record(self, became: Sequence[tuple[Entry, Outcome]], at: float) -> None:
        """What the cluster showed of each."""
        with self._database.transaction():
            self._database.write_many(
                "UPDATE operations SET result = ?, commands = ?, detail = ?, finished = ? WHERE id = ?",
                [
                    (outcome.result.value, json.dumps(outcome.commands), outcome.detail, at, entry.row)
                    for entry, outcome in became
                ],
            )
            resolve(self._database, (outcome for _, outcome in became))

    def mark_undone(self, entry: Entry, detail: str) -> None:
        """It was done and has been taken back since, by operations of their own; `detail` is why, in Slurm's words."""
        self._database.write(
            "UPDATE operations SET result = ?, detail = ? WHERE id = ?", (Result.UNDONE.value, detail, entry.row)
        )

    def open_intents(self) -> tuple[Entry, ...]:
        """What was about to be done when a process was killed, oldest first. One that cannot be read is given up."""
        rows = self._database.rows("SELECT * FROM operations WHERE result = ? ORDER BY id", (Result.INTENDED.value,))
        entries = self._database.unreadable.each("operations", "id", _entry, rows)
        lost = {row["id"] for row in rows} - {entry.row for entry in entries}
        if lost:
            self._database.write_many(
                "UPDATE operations SET result = ?, detail = 'cannot be read back' WHERE id = ?",
                [(Result.FAILED.value, row) for row in lost],
            )
        return entries

    def _enter(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], **state: str | float | None
    ) -> tuple[Entry, ...]:
        return tuple(
            Entry(
                self._database.insert(
                    "operations", {"round": round_id, "position": position, **_columns(operation), **state}
                ),
                round_id,
                position,
                operation,
            )
            for position, operation in numbered
        )


def notified(database: Database, snapshot: Snapshot) -> Mapping[JobId, Notified]:
    """The running jobs of the snapshot that were told in this run of theirs to write a checkpoint, and for whom they
    give way in a later round. A signal is in the journal before it is sent, so a killed daemon forgets none."""
    rows = database.rows(
        "SELECT subject, finished, reason FROM operations"
        " WHERE verb = 'notify' AND result = 'done' AND finished > ? ORDER BY finished, id",
        (snapshot.time - _LONGEST_AGO,),
    )
    told: dict[JobId, Notified] = {}
    for row in rows:
        job = snapshot.job.get(row["subject"])
        if job is None or job.state is not JobState.RUNNING or (job.start_time or 0.0) > row["finished"]:
            continue
        newcomers = _newcomers(row["reason"])
        told.pop(job.id, None)
        if newcomers:
            told[job.id] = Notified(row["finished"], newcomers)
    return told


def _newcomers(reason: str) -> tuple[JobId, ...]:
    """Nobody where the requeue was part of the same round, or where the row cannot be read."""
    try:
        details = decode(Reason, reason).details
    except EncodingError:
        return ()
    return tuple(filter(None, str(details.get(NEWCOMERS, "")).split(",")))


def _columns(operation: Operation) -> dict[str, str | None]:
    data, undo = plain(operation), operation.undo()
    return {
        "verb": operation.verb.value,
        "subject": operation.subject,
        "before": json.dumps(data["before"]),
        "after": json.dumps(data["after"]),
        "reason": encode(operation.reason),
        "sentence": operation.sentence,
        "undo": None if undo is None else encode(undo),
    }


def _entry(row: Row) -> Entry:
    return Entry(row["id"], whole(row, "round"), whole(row, "position"), _operation(row))


def _operation(row: Row) -> Operation:
    """The operation as far as a journal needs it: what it waited for is no longer of interest."""
    known = {name: json.loads(text(row, name)) for name in ("before", "after", "reason")}
    return decode(Operation, json.dumps({"verb": text(row, "verb"), "subject": text(row, "subject"), **known}))
