"""Looking at the database without being able to change it; plain sqlite3, so that `status` starts fast.

The file is opened read-only. A row that cannot be read costs itself alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.model import (
    JobId,
    JobState,
    Operation,
    Overview,
    Reason,
    Request,
    Result,
    Target,
    Verb,
)
from slurmsched.store.columns import Row, decoded, flag, mapping, maybe, number, stored_json, text, text_of, whole
from slurmsched.store.errors import StoreError, one_line
from slurmsched.store.rows import (
    ComplaintRow,
    EventRow,
    JobRow,
    MeasuredRow,
    OperationRow,
    RoundRow,
    SetAsideRow,
    SwitchRow,
    measured_point,
)
from slurmsched.store.unreadable import UnreadableRow, UnreadableRows

__all__ = ["NoDatabaseError", "Reading", "UnreadableError", "reading"]

T = TypeVar("T")

BUSY: Final = 5.0
"""Seconds to wait for a writer to finish."""

_TRIES: Final = 5
"""Rounds looked back for one that can be read."""

_MOST: Final = 1000

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
    "SELECT r.rowid AS id, r.job, j.owner, j.summary, r.gpu_type, r.gpus, r.nodes, r.cpus, r.memory,"
    " r.fair_cpus, r.fair_memory, r.steps / r.seconds AS rate, r.at FROM rates r JOIN jobs j ON j.id = r.job"
)


class UnreadableError(StoreError):
    """The database is busy, broken or not ours to read."""


class NoDatabaseError(StoreError):
    """Nothing has been recorded yet."""


class Reading:
    """Questions to an open database. All of them raise UnreadableError; a row that cannot be read is left out."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._unreadable = UnreadableRows()

    def last_round(self) -> RoundRow | None:
        """The latest round that ended without an error; failing that, the latest there is."""
        ended = self._rounds("AND finished IS NOT NULL AND error = '' ORDER BY id DESC LIMIT ?", _TRIES)
        return next(iter(ended or self.rounds(_TRIES)), None)

    def rounds(self, most: int) -> tuple[RoundRow, ...]:
        """The latest rounds of scheduling, newest first; giving jobs back is none."""
        return self._rounds("ORDER BY id DESC LIMIT ?", most)

    def overview(self) -> Overview | None:
        """What was in use as of the latest round that recorded it."""
        query = "SELECT id, overview FROM rounds WHERE overview IS NOT NULL ORDER BY id DESC LIMIT ?"
        found = self._each("rounds", lambda row: decoded(Overview, row, "overview"), query, _TRIES)
        return next(iter(found), None)

    def recording(self, round_id: int | None = None) -> tuple[int, bytes] | None:
        """A round's number and its compressed snapshot and memory; None once pruned. Without a number, the latest."""
        query = (
            "SELECT id, snapshot FROM rounds WHERE snapshot IS NOT NULL AND id = COALESCE(?, id)"
            " ORDER BY id DESC LIMIT 1"
        )
        return next(iter(self._each("rounds", _recording, query, round_id)), None)

    def jobs(self) -> tuple[JobRow, ...]:
        """Managed jobs that are still in the queue: those that have resources first, then in the last round's order."""
        order = "ORDER BY state = 'pending', rank IS NULL, rank, CAST(id AS INTEGER), id"
        return self._each("jobs", _job, f"{_JOB} WHERE state != 'finished' {order}")

    def job(self, job: JobId) -> JobRow | None:
        """One job, also when it has ended."""
        return next(iter(self._each("jobs", _job, f"{_JOB} WHERE id = ?", job)), None)

    def array(self, job: JobId) -> tuple[JobId, ...]:
        """The known tasks of an array job, in order."""
        rows = self._rows("SELECT id FROM jobs WHERE id > ? || '_' AND id < ? || '`'", job, job)  # ` follows _
        return tuple(sorted((row["id"] for row in rows), key=lambda task: (len(task), task)))

    def events(self, job: JobId) -> tuple[EventRow, ...]:
        """What happened to a job, oldest first."""
        query = "SELECT id, at, round, job, kind, code, sentence FROM events WHERE job = ? ORDER BY at, id"
        return self._each("events", _event, query, job)

    def surprises(self, round_id: int) -> int:
        """How many jobs run on other GPUs than that round foresaw."""
        rows = self._rows("SELECT count(*) AS jobs FROM events WHERE round = ? AND kind = 'device'", round_id)
        return int(rows[0]["jobs"])

    def overruled(self, since: float) -> Mapping[int, tuple[JobId, ...]]:
        """By round since then (unix seconds) the jobs whose hold somebody else had lifted, with their numbers."""
        rows = self._rows("SELECT round, job FROM events WHERE at >= ? AND kind = 'overruled' ORDER BY id", since)
        return {
            round_id: tuple(row["job"] for row in rows if row["round"] == round_id)
            for round_id in sorted({row["round"] for row in rows if row["round"] is not None})
        }

    def operations(self, job: JobId) -> tuple[OperationRow, ...]:
        """What was done to a job, oldest first."""
        return self._each("operations", _operation, f"{_OPERATION} WHERE subject = ? ORDER BY id", job)

    def operations_of(self, round_id: int) -> tuple[OperationRow, ...]:
        """What a round did, in its order."""
        return self._each("operations", _operation, f"{_OPERATION} WHERE round = ? ORDER BY position, id", round_id)

    def service(self, job: JobId) -> float:
        """GPU-seconds a job has attained over all its runs."""
        query = "SELECT job, gpu_seconds FROM service WHERE job = ? ORDER BY run_started"
        return sum(self._each("service", lambda row: number(row, "gpu_seconds"), query, job, key="job"))

    def measured(self) -> tuple[MeasuredRow, ...]:
        """How fast jobs in the queue were with each allocation that they have had, by their own reports."""
        order = "ORDER BY CAST(j.id AS INTEGER), j.id, r.at DESC"
        return self._each("rates", _measured, f"{_MEASURED} WHERE j.state != 'finished' {order}")

    def complaints(self) -> tuple[ComplaintRow, ...]:
        """Whose reports were not believed of late, the latest first."""
        query = "SELECT subject, sentence, at FROM complaints ORDER BY at DESC, subject"
        return self._each("complaints", _complaint, query, key="subject")

    def set_aside(self) -> tuple[SetAsideRow, ...]:
        """The jobs that nothing is decided about as of the last round, the longest first."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'set_aside'"):
            return ()  # written by an older release, and no round has brought it up to date
        query = "SELECT job, owner, reason, since, mark != '' AS readable FROM set_aside ORDER BY since, job"
        return self._each("set_aside", _set_aside, query, key="job")

    def policy_state(self, system: str) -> Mapping[str, object]:
        """What this system remembered in its last round; nothing where it had none."""
        query = "SELECT system, state FROM policy_state WHERE system = ?"
        found = self._each("policy_state", lambda row: mapping(row, "state"), query, system, key="system")
        return next(iter(found), {})

    def switch(self, name: str) -> SwitchRow | None:
        """A switch that somebody set, None when it is off. One whose words cannot be read is set all the same."""
        query = "SELECT name, value, set_by, at FROM switches WHERE name = ?"
        found = self._each("switches", _switch, query, name, key="name")
        if found or not self._rows(query, name):
            return next(iter(found), None)
        return SwitchRow(name, "why cannot be read in the database", "somebody", 0.0)

    def unreadable(self) -> tuple[UnreadableRow, ...]:
        """Rows that were left out: by rounds of the last day, and by this look so far."""
        rows: tuple[UnreadableRow, ...] = ()
        if self._rows("SELECT 1 FROM sqlite_master WHERE name = 'unreadable'"):  # an older release had none
            query = "SELECT rowid AS id, place, row, problem FROM unreadable ORDER BY at DESC, place, row LIMIT ?"
            rows = self._each("unreadable", _unreadable_row, query, _MOST)
        met = {(row.place, row.row): row for row in (*rows, *self._unreadable)}
        return tuple(met.values())

    def _rounds(self, which: str, *arguments: int) -> tuple[RoundRow, ...]:
        return self._each("rounds", _round, f"{_ROUND} WHERE mode != 'release' {which}", *arguments)

    def _each(
        self, place: str, form: Callable[[Row], T], query: str, *arguments: str | int | None, key: str = "id"
    ) -> tuple[T, ...]:
        """What can be read of table `place`; rows that cannot be are noted."""
        return self._unreadable.each(place, key, form, map(dict, self._rows(query, *arguments)))

    def _rows(self, query: str, *arguments: str | float | None) -> Sequence[sqlite3.Row]:
        try:
            return self._connection.execute(query, arguments).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes a damaged schema
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
        connection.text_factory = text_of
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
    return UnreadableError(f"cannot read {path} ({one_line(said)}): {advice}")


def _round(row: Row) -> RoundRow:
    counts = ("id", "nodes", "jobs", "managed", "running", "waiting", "reads", "writes")
    seconds = ("finished", "observe_s", "decide_s", "plan_s", "apply_s")
    for column in counts:
        whole(row, column)
    for column in seconds:
        maybe(row, column)
    for column in ("mode", "system", "ordering", "error"):
        text(row, column)
    number(row, "started")
    return RoundRow(**row)


def _recording(row: Row) -> tuple[int, bytes]:
    if not isinstance(row["snapshot"], bytes):
        raise ValueError("snapshot is no recording")
    return row["id"], row["snapshot"]


def _event(row: Row) -> EventRow:
    return EventRow(
        at=number(row, "at"),
        round=None if row["round"] is None else whole(row, "round"),
        job=text(row, "job"),
        kind=text(row, "kind"),
        code=text(row, "code"),
        sentence=text(row, "sentence"),
    )


def _measured(row: Row) -> MeasuredRow:
    hints = mapping(row, "summary").get("hints", {})
    named = {key: hints.get(key) or "" for key in ("model", "task")} if isinstance(hints, dict) else {}
    model, task = (str(named.get(key, "")) for key in ("model", "task"))
    return MeasuredRow(text(row, "job"), text(row, "owner"), model, task, measured_point(row))


def _complaint(row: Row) -> ComplaintRow:
    return ComplaintRow(text(row, "subject"), text(row, "sentence"), number(row, "at"))


def _set_aside(row: Row) -> SetAsideRow:
    return SetAsideRow(
        text(row, "job"), text(row, "owner"), text(row, "reason"), number(row, "since"), flag(row, "readable")
    )


def _switch(row: Row) -> SwitchRow:
    return SwitchRow(text(row, "name"), text(row, "value"), text(row, "set_by"), number(row, "at"))


def _unreadable_row(row: Row) -> UnreadableRow:
    return UnreadableRow(text(row, "place"), text(row, "row"), text(row, "problem"))


def _job(row: Row) -> JobRow:
    return JobRow(
        id=text(row, "id"),
        owner=text(row, "owner"),
        name=text(row, "name"),
        first_seen=number(row, "first_seen"),
        last_seen=number(row, "last_seen"),
        state=JobState(text(row, "state")),
        original=decoded(Request, row, "original"),
        held_by_us=flag(row, "held_by_us"),
        reshaped=flag(row, "reshaped"),
        boosted=flag(row, "boosted"),
        rank=None if row["rank"] is None else whole(row, "rank"),
        rank_key=text(row, "rank_key"),
        reason=mapping(row, "reason") if row["reason"] is not None else {},
        sentence=text(row, "sentence"),
        target=decoded(Target, row, "target") if row["target"] is not None else None,
        summary=mapping(row, "summary"),
    )


def _operation(row: Row) -> OperationRow:
    commands = stored_json(row, "commands")
    if not isinstance(commands, list):
        raise ValueError("commands is no list")
    return OperationRow(
        id=row["id"],
        round=whole(row, "round"),
        position=whole(row, "position"),
        verb=Verb(text(row, "verb")),
        subject=text(row, "subject"),
        reason=decoded(Reason, row, "reason"),
        sentence=text(row, "sentence"),
        undo=decoded(Operation, row, "undo") if row["undo"] is not None else None,
        result=Result(text(row, "result")),
        commands=tuple(map(str, commands)),
        detail=text(row, "detail"),
        intended=number(row, "intended"),
        finished=maybe(row, "finished"),
    )
