"""Looking at the database without being able to change it; plain sqlite3, so that `status` starts fast.

Every user may look: the file is opened read-only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.model import (
    JobId,
    JobState,
    Measured,
    Operation,
    Overview,
    Reason,
    Request,
    Result,
    Target,
    Verb,
    decode,
)
from slurmsched.store.errors import StoreError
from slurmsched.store.rows import (
    ComplaintRow,
    EventRow,
    JobRow,
    MeasuredRow,
    OperationRow,
    RoundRow,
    SetAsideRow,
    SwitchRow,
)

__all__ = ["NoDatabaseError", "Reading", "UnreadableError", "reading"]

T = TypeVar("T")

BUSY: Final = 5.0
"""Seconds to wait for a writer to finish."""

_ROUND = (
    "SELECT id, started, finished, mode, system, ordering, nodes, jobs, managed, running, waiting,"
    " observe_s, decide_s, plan_s, apply_s, reads, writes, error FROM rounds"
)
_JOB = (
    "SELECT id, owner, name, first_seen, last_seen, state, original, held_by_us, reshaped, boosted,"
    " rank, rank_key, reason, sentence, target, summary FROM jobs"
)
_OPERATION = (
    "SELECT id, round, position, verb, subject, reason, sentence, undo, result, commands, detail, intended, finished"
    " FROM operations"
)

_MEASURED = (
    "SELECT r.job, j.owner, j.summary, r.gpu_type, r.gpus, r.nodes, r.cpus, r.memory, r.fair_cpus, r.fair_memory,"
    " r.steps / r.seconds AS rate, r.at FROM rates r JOIN jobs j ON j.id = r.job"
)


class UnreadableError(StoreError):
    """The database is busy, broken or not ours to read."""


class NoDatabaseError(StoreError):
    """Nothing has been recorded yet."""


class Reading:
    """Questions to an open database. All of them raise UnreadableError."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def last_round(self) -> RoundRow | None:
        """The latest round that ended without an error; failing that, the latest there is."""
        ended = self._rounds("AND finished IS NOT NULL AND error = '' ORDER BY id DESC LIMIT 1")
        return next(iter(ended or self.rounds(1)), None)

    def rounds(self, most: int) -> tuple[RoundRow, ...]:
        """The latest rounds of scheduling, newest first; giving jobs back is none."""
        return self._rounds("ORDER BY id DESC LIMIT ?", most)

    def overview(self) -> Overview | None:
        """What was in use as of the latest round that recorded it."""
        rows = self._rows("SELECT overview FROM rounds WHERE overview IS NOT NULL ORDER BY id DESC LIMIT 1")
        return decode(Overview, rows[0]["overview"]) if rows else None

    def recording(self, round_id: int | None = None) -> tuple[int, bytes] | None:
        """A round's number and its compressed snapshot and memory; None once pruned. Without a number, the latest."""
        query = (
            "SELECT id, snapshot FROM rounds WHERE snapshot IS NOT NULL AND id = COALESCE(?, id)"
            " ORDER BY id DESC LIMIT 1"
        )
        rows = self._rows(query, round_id)
        return (rows[0]["id"], rows[0]["snapshot"]) if rows else None

    def jobs(self) -> tuple[JobRow, ...]:
        """Managed jobs that are still in the queue: those that have resources first, then in the last round's order."""
        order = "ORDER BY state = 'pending', rank IS NULL, rank, CAST(id AS INTEGER), id"
        return self._each(_job, f"{_JOB} WHERE state != 'finished' {order}")

    def job(self, job: JobId) -> JobRow | None:
        """One job, also when it has ended."""
        return next(iter(self._each(_job, f"{_JOB} WHERE id = ?", job)), None)

    def array(self, job: JobId) -> tuple[JobId, ...]:
        """The known tasks of an array job, in order."""
        rows = self._rows("SELECT id FROM jobs WHERE id LIKE ? || '\\_%' ESCAPE '\\'", job)
        return tuple(sorted((row["id"] for row in rows), key=lambda task: (len(task), task)))

    def events(self, job: JobId) -> tuple[EventRow, ...]:
        """What happened to a job, oldest first."""
        query = "SELECT at, round, job, kind, code, sentence FROM events WHERE job = ? ORDER BY at, id"
        return self._each(_event, query, job)

    def surprises(self, round_id: int) -> int:
        """How many jobs run on other GPUs than that round foresaw."""
        rows = self._rows("SELECT count(*) AS jobs FROM events WHERE round = ? AND kind = 'device'", round_id)
        return int(rows[0]["jobs"])

    def operations(self, job: JobId) -> tuple[OperationRow, ...]:
        """What was done to a job, oldest first."""
        return self._each(_operation, f"{_OPERATION} WHERE subject = ? ORDER BY id", job)

    def operations_of(self, round_id: int) -> tuple[OperationRow, ...]:
        """What a round did, in its order."""
        return self._each(_operation, f"{_OPERATION} WHERE round = ? ORDER BY position, id", round_id)

    def service(self, job: JobId) -> float:
        """GPU-seconds a job has attained over all its runs."""
        return float(self._rows("SELECT TOTAL(gpu_seconds) AS total FROM service WHERE job = ?", job)[0]["total"])

    def measured(self) -> tuple[MeasuredRow, ...]:
        """How fast jobs in the queue were with each allocation that they have had, by their own reports."""
        order = "ORDER BY CAST(j.id AS INTEGER), j.id, r.at DESC"
        return self._each(_measured, f"{_MEASURED} WHERE j.state != 'finished' {order}")

    def complaints(self) -> tuple[ComplaintRow, ...]:
        """Whose reports were not believed of late, the latest first."""
        return self._each(_complaint, "SELECT subject, sentence, at FROM complaints ORDER BY at DESC, subject")

    def set_aside(self) -> tuple[SetAsideRow, ...]:
        """The jobs that nothing is decided about as of the last round, the longest first."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'set_aside'"):
            return ()  # written by an older release, and no round has brought it up to date
        query = "SELECT job, owner, reason, since, mark != '' AS readable FROM set_aside ORDER BY since, job"
        return self._each(_set_aside, query)

    def policy_state(self, system: str) -> Mapping[str, object]:
        """What this system remembered in its last round; nothing where it had none."""
        rows = self._rows("SELECT state FROM policy_state WHERE system = ?", system)
        try:
            found = json.loads(rows[0]["state"]) if rows else {}
        except ValueError as error:
            raise _unreadable(self._path, error) from error
        return found if isinstance(found, dict) else {}

    def switch(self, name: str) -> SwitchRow | None:
        """A switch that somebody set, None when it is off."""
        query = "SELECT name, value, set_by, at FROM switches WHERE name = ?"
        return next(iter(self._each(_switch, query, name)), None)

    def _rounds(self, which: str, *arguments: int) -> tuple[RoundRow, ...]:
        return self._each(_round, f"{_ROUND} WHERE mode != 'release' {which}", *arguments)

    def _each(self, form: Callable[[sqlite3.Row], T], query: str, *arguments: str | int | None) -> tuple[T, ...]:
        try:
            return tuple(map(form, self._rows(query, *arguments)))
        except (ValueError, TypeError) as error:
            raise UnreadableError(
                f"{self._path} holds what this version does not know ({error}): use the version that 'synsched run' has"
            ) from error

    def _rows(self, query: str, *arguments: str | int | None) -> Sequence[sqlite3.Row]:
        try:
            return self._connection.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise _unreadable(self._path, error) from error


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """The database at `path`, as of one moment. Raises NoDatabaseError, UnreadableError."""
    try:
        if not path.exists():
            raise NoDatabaseError(f"no round has been recorded in {path} yet: start 'synsched run'")
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY)
    except (sqlite3.Error, OSError) as error:
        raise _unreadable(path, error) from error
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        yield Reading(connection, path)
    finally:
        connection.close()


def _unreadable(path: Path, error: Exception) -> UnreadableError:
    said = str(error)
    match error:
        case PermissionError():
            advice = "ask the administrator to let you read it"
        case sqlite3.OperationalError() if "locked" in said or "busy" in said:
            advice = "it is being written: try again in a moment"
        case sqlite3.OperationalError() if "no such table" in said:
            advice = "no round has been recorded in it yet: start 'synsched run'"
        case sqlite3.OperationalError() if "readonly" in said or "unable to open" in said:
            advice = "check who may read it; a 'synsched run' finishes what was interrupted"
        case _:
            advice = "move it away and start 'synsched run' for a new one"
    return UnreadableError(f"cannot read {path} ({said}): {advice}")


def _round(row: sqlite3.Row) -> RoundRow:
    return RoundRow(**dict(row))


def _event(row: sqlite3.Row) -> EventRow:
    return EventRow(**dict(row))


def _measured(row: sqlite3.Row) -> MeasuredRow:
    hints = json.loads(row["summary"]).get("hints", {})
    point = Measured(**{field.name: row[field.name] for field in fields(Measured)})
    return MeasuredRow(row["job"], row["owner"], hints.get("model") or "", hints.get("task") or "", point)


def _complaint(row: sqlite3.Row) -> ComplaintRow:
    return ComplaintRow(**dict(row))


def _set_aside(row: sqlite3.Row) -> SetAsideRow:
    return SetAsideRow(row["job"], row["owner"], row["reason"], row["since"], bool(row["readable"]))


def _switch(row: sqlite3.Row) -> SwitchRow:
    return SwitchRow(**dict(row))


def _job(row: sqlite3.Row) -> JobRow:
    return JobRow(
        id=row["id"],
        owner=row["owner"],
        name=row["name"],
        first_seen=row["first_seen"],
        last_seen=row["last_seen"],
        state=JobState(row["state"]),
        original=decode(Request, row["original"]),
        held_by_us=bool(row["held_by_us"]),
        reshaped=bool(row["reshaped"]),
        boosted=bool(row["boosted"]),
        rank=row["rank"],
        rank_key=row["rank_key"],
        reason=json.loads(row["reason"] or "{}"),
        sentence=row["sentence"],
        target=decode(Target, row["target"]) if row["target"] else None,
        summary=json.loads(row["summary"]),
    )


def _operation(row: sqlite3.Row) -> OperationRow:
    return OperationRow(
        id=row["id"],
        round=row["round"],
        position=row["position"],
        verb=Verb(row["verb"]),
        subject=row["subject"],
        reason=decode(Reason, row["reason"]),
        sentence=row["sentence"],
        undo=decode(Operation, row["undo"]) if row["undo"] else None,
        result=Result(row["result"]),
        commands=tuple(json.loads(row["commands"])),
        detail=row["detail"],
        intended=row["intended"],
        finished=row["finished"],
    )
