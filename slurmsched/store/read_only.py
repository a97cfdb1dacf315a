"""Read-only queries of the database, with plain sqlite3 so that `status` starts fast. Unreadable rows are skipped."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.model import (
    AccountedRun,
    ClusterOverview,
    ExpectedTime,
    IdleGpus,
    JobId,
    JobState,
    Operation,
    Reason,
    Request,
    Result,
    StartRanges,
    Target,
    Verb,
)
from slurmsched.store.errors import StoreError, printable_line
from slurmsched.store.rows import (
    DatabaseRow,
    EventRow,
    ExporterRow,
    ForecastRow,
    JobRow,
    OperationRow,
    RateRow,
    RejectedReportRow,
    RoundRow,
    SetAsideRow,
    StartCalibration,
    SwitchRow,
    UnreadableRow,
    UnreadableRows,
    UseRow,
    boolean,
    decode_text,
    decoded_value,
    integer,
    json_object,
    json_value,
    number,
    optional_number,
    parse_exporter,
    parse_forecast,
    parse_idle,
    parse_rate,
    parse_run,
    parse_start_ranges,
    parse_use,
    text,
    was_in_range,
)

T = TypeVar("T")

READ_TIMEOUT: Final = 5.0
"""Seconds to wait for a writer."""

_ROUNDS_TRIED: Final = 5
"""How many of the latest rounds are tried to find a readable one."""

_MAX_UNREADABLE: Final = 1000

_MAX_RUNS_OF_OWNER: Final = 5_000
_MAX_WAITS: Final = 20_000
_MAX_STARTS: Final = 5_000
"""Seconds to which ranges are told, and held to."""

_ROUND = (
    "SELECT id, started, finished, mode, system, ordering, nodes, jobs, managed, running, waiting,"
    " observe_s, decide_s, plan_s, apply_s, reads, writes, error FROM rounds"
)
_JOB = (
    "SELECT id, owner, name, first_seen, state, original, held_by_us, reshaped, boosted,"
    " CASE WHEN state = 'finished' THEN last_seen"
    " ELSE COALESCE((SELECT at FROM upkeep WHERE name = 'polled' AND typeof(at) = 'real'), last_seen) END AS last_seen,"
    " rank, rank_key, reason, sentence, target, summary FROM jobs"
)
_OPERATION = (
    "SELECT id, round, position, verb, subject, reason, sentence, undo, result, commands, detail, intended, finished"
    " FROM operations"
)

_RATE = (
    "SELECT r.rowid AS id, r.job, j.owner, j.summary, r.gpu_type, r.gpus, r.nodes, r.cpus, r.memory,"
    " r.fair_cpus, r.fair_memory, r.steps / r.seconds AS rate, r.at FROM rates r JOIN jobs j ON j.id = r.job"
)


class UnreadableError(StoreError):
    """The database is locked, damaged or not readable for us."""


class NoDatabaseError(StoreError):
    """The database does not exist yet."""


class ReadOnlyStore:
    """Queries of an open database. All methods raise UnreadableError; a row that cannot be read is left out."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._unreadable = UnreadableRows()

    def last_round(self) -> RoundRow | None:
        """The latest round that finished without an error; without one, the latest round."""
        succeeded = self._rounds("AND finished IS NOT NULL AND error = '' ORDER BY id DESC LIMIT ?", _ROUNDS_TRIED)
        return next(iter(succeeded or self.rounds(_ROUNDS_TRIED)), None)

    def rounds(self, limit: int) -> tuple[RoundRow, ...]:
        """The latest scheduling rounds, newest first, without those of `synsched release`."""
        return self._rounds("ORDER BY id DESC LIMIT ?", limit)

    def overview(self) -> ClusterOverview | None:
        """The nodes and what is in use on them, as of the latest round that recorded it."""
        query = "SELECT id, overview FROM rounds WHERE overview IS NOT NULL ORDER BY id DESC LIMIT ?"
        overviews = self._parse_each(
            "rounds", lambda row: decoded_value(ClusterOverview, row, "overview"), query, _ROUNDS_TRIED
        )
        return next(iter(overviews), None)

    def recording(self, round_id: int | None = None) -> tuple[int, bytes] | None:
        """A round's number and its compressed recording, None once pruned; by default the latest."""
        query = (
            "SELECT id, snapshot FROM rounds WHERE snapshot IS NOT NULL AND id = COALESCE(?, id)"
            " ORDER BY id DESC LIMIT 1"
        )
        return next(iter(self._parse_each("rounds", _recording, query, round_id)), None)

    def jobs(self) -> tuple[JobRow, ...]:
        """The unfinished managed jobs: those with resources first, then pending ones in the order of the last round."""
        order = "ORDER BY state = 'pending', rank IS NULL, rank, CAST(id AS INTEGER), id"
        return self._parse_each("jobs", _job, f"{_JOB} WHERE state != 'finished' {order}")

    def job(self, job: JobId) -> JobRow | None:
        """One job, finished or not; None if unknown."""
        return next(iter(self._parse_each("jobs", _job, f"{_JOB} WHERE id = ?", job)), None)

    def array_tasks(self, job: JobId) -> tuple[JobId, ...]:
        """The known tasks of an array job, by task number."""
        rows = self._rows("SELECT id FROM jobs WHERE id > ? || '_' AND id < ? || '`'", job, job)  # ` follows _
        return tuple(sorted((row["id"] for row in rows), key=lambda task: (len(task), task)))

    def events(self, job: JobId) -> tuple[EventRow, ...]:
        """The events of a job, oldest first. Slurm's times, of starts and ends, are in whole seconds."""
        query = (
            "SELECT id, at, round, job, kind, code, sentence FROM events WHERE job = ?"
            " ORDER BY CAST(at AS INTEGER), kind = 'ended', kind = 'started', id"
        )
        return self._parse_each("events", _event, query, job)

    def device_mismatches(self, round_id: int) -> int:
        """How many jobs run on other GPUs than that round planned."""
        rows = self._rows("SELECT count(*) AS jobs FROM events WHERE round = ? AND kind = 'device'", round_id)
        return int(rows[0]["jobs"])

    def lifted_holds(self, since: float) -> Mapping[int, tuple[JobId, ...]]:
        """By round since `since` (unix seconds): the jobs whose hold was released by others."""
        rows = self._rows("SELECT round, job FROM events WHERE at >= ? AND kind = 'overruled' ORDER BY id", since)
        return {
            round_id: tuple(row["job"] for row in rows if row["round"] == round_id)
            for round_id in sorted({row["round"] for row in rows if row["round"] is not None})
        }

    def operations(self, job: JobId) -> tuple[OperationRow, ...]:
        """The operations on a job, oldest first."""
        return self._parse_each("operations", _operation, f"{_OPERATION} WHERE subject = ? ORDER BY id", job)

    def operations_of_round(self, round_id: int) -> tuple[OperationRow, ...]:
        """The operations of a round, in the order of its plan."""
        return self._parse_each(
            "operations", _operation, f"{_OPERATION} WHERE round = ? ORDER BY position, id", round_id
        )

    def service(self, job: JobId) -> float:
        """The attained service of a job over all its runs, in GPU-seconds."""
        query = "SELECT job, gpu_seconds FROM service WHERE job = ? ORDER BY run_started"
        return sum(self._parse_each("service", lambda row: number(row, "gpu_seconds"), query, job, key="job"))

    def rates(self) -> tuple[RateRow, ...]:
        """The measured rates of unfinished jobs with each of their allocations, from their reports."""
        order = "ORDER BY CAST(j.id AS INTEGER), j.id, r.at DESC"
        return self._parse_each("rates", _rate, f"{_RATE} WHERE j.state != 'finished' {order}")

    def rejected_reports(self) -> tuple[RejectedReportRow, ...]:
        """The reports rejected in the last day, the latest first."""
        query = "SELECT subject, sentence, at FROM complaints ORDER BY at DESC, subject"
        return self._parse_each("complaints", _rejected_report, query, key="subject")

    def accounting_problem(self) -> str:
        """Why accounting did not answer when it was asked last; empty if it did."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'accounting'"):
            return ""  # the schema is of an older release
        query = "SELECT id, problem FROM accounting WHERE failures > 0"
        return next(iter(self._parse_each("accounting", lambda row: text(row, "problem"), query)), "")

    def exporters(self) -> tuple[ExporterRow, ...]:
        """What came of asking Prometheus for the series of each exporter, by its name."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'telemetry'"):
            return ()  # the schema is of an older release
        return self._parse_each(
            "telemetry", parse_exporter, "SELECT * FROM telemetry ORDER BY exporter", key="exporter"
        )

    def finished_runs(self, since: float, owner: str | None = None) -> tuple[AccountedRun, ...]:
        """The runs that ended at `since` (unix seconds) or later, the earliest first: all, or the latest 5,000 of this
        owner."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'finished_runs'"):
            return ()  # the schema is of an older release
        runs, order = "SELECT * FROM finished_runs WHERE ended >= ?", "ORDER BY ended, job"
        if owner is None:
            return self._parse_each("finished_runs", parse_run, f"{runs} {order}", since, key="job")
        latest = f"{runs} AND owner = ? ORDER BY ended DESC LIMIT ?"
        found = self._parse_each("finished_runs", parse_run, latest, since, owner, _MAX_RUNS_OF_OWNER, key="job")
        return found[::-1]

    def runs_of_job(self, job: JobId) -> tuple[AccountedRun, ...]:
        """The runs of a job, or of all tasks of an array, that have ended, the earliest first."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'finished_runs'"):
            return ()  # the schema is of an older release
        query = "SELECT * FROM finished_runs WHERE job = ? OR array_job = ? ORDER BY ended, job"
        return self._parse_each("finished_runs", parse_run, query, job, job, key="job")

    def origin(self, job: JobId) -> tuple[str, str]:
        """The digest of a job's script and its folder; empty texts where they are not known."""
        if not self._rows("SELECT 1 FROM pragma_table_info('jobs') WHERE name = 'script'"):
            return "", ""
        query = "SELECT id, script, folder FROM jobs WHERE id = ? AND script IS NOT NULL"
        found = self._parse_each("jobs", lambda row: (text(row, "script"), text(row, "folder")), query, job)
        return next(iter(found), ("", ""))

    def set_aside(self) -> tuple[SetAsideRow, ...]:
        """The jobs set aside as of the last round, those set aside longest first."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'set_aside'"):
            return ()  # the schema is of an older release
        query = "SELECT job, owner, reason, since, mark != '' AS readable FROM set_aside ORDER BY since, job"
        return self._parse_each("set_aside", _set_aside, query, key="job")

    def start_forecasts(self, job: JobId | None = None) -> Mapping[JobId, ForecastRow]:
        """When waiting jobs were last expected to start, of this job or of all."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'start_forecasts'"):
            return {}  # the schema is of an older release
        query = "SELECT * FROM start_forecasts WHERE which = 'last' AND job = COALESCE(?, job)"
        found = self._parse_each("start_forecasts", parse_forecast, query, job, key="job")
        return {forecast.job: forecast for forecast in found}

    def idle_gpus(self, since: float) -> tuple[IdleGpus, ...]:
        """The running jobs with GPUs that are idle for long, as they were told at `since` (unix seconds) or later; the
        most idle GPU time first."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'idle_gpus'"):
            return ()  # as above
        query = "SELECT * FROM idle_gpus WHERE at >= ? ORDER BY idle * (at - since) DESC, job"
        return self._parse_each("idle_gpus", parse_idle, query, since, key="job")

    def start_calibration(self) -> tuple[StartCalibration, ...]:
        """How the latest starts turned out against what had been told of them."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'told_starts'"):
            return ()  # as above
        query = "SELECT * FROM told_starts WHERE which = ? ORDER BY started DESC LIMIT ?"
        turned_out = list[StartCalibration]()
        for which in ("first", "hour"):
            told = self._parse_each("told_starts", _told_start, query, which, _MAX_STARTS, key="job")
            if told:
                errors = sorted(error for _, error in told)
                within = sum(inside for inside, _ in told) / len(told)
                turned_out.append(StartCalibration(which, len(told), within, errors[len(errors) // 2]))
        return tuple(turned_out)

    def start_ranges(self) -> StartRanges:
        """By how much the daemon widens or narrows the ranges of starts."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'start_ranges'"):
            return StartRanges()  # as above
        return next(
            iter(self._parse_each("start_ranges", parse_start_ranges, "SELECT * FROM start_ranges")), StartRanges()
        )

    def use_history(self, since: float) -> tuple[UseRow, ...]:
        """What rounds from `since` (unix seconds) on saw, the earliest first: the first one of each minute."""
        if not self._rows("SELECT 1 FROM pragma_table_info('rounds') WHERE name = 'gpus'"):
            return ()  # as above
        query = (
            "SELECT MIN(id) AS id, started, gpus, gpus_used, gpus_down, running, waiting FROM rounds WHERE started >= ?"
            " AND mode != 'release' AND error = '' AND gpus > 0 GROUP BY CAST(started / 60 AS INTEGER) ORDER BY started"
        )
        return self._parse_each("rounds", parse_use, query, since)

    def start_waits(self, since: float) -> tuple[tuple[float, float], ...]:
        """When jobs started for the first time, from `since` (unix seconds) on, the earliest first, and how long they
        had waited since their submission; the latest 20,000."""
        query = (
            "SELECT e.id, e.at, e.at - COALESCE(j.submitted, j.first_seen) AS wait FROM events e"
            " JOIN jobs j ON j.id = e.job WHERE e.kind = 'started' AND e.at >= ? AND NOT EXISTS (SELECT 1 FROM events b"
            " WHERE b.job = e.job AND b.kind = 'started' AND b.id < e.id) ORDER BY e.at DESC LIMIT ?"
        )
        waits = self._parse_each(
            "events", lambda row: (number(row, "at"), max(number(row, "wait"), 0.0)), query, since, _MAX_WAITS
        )
        return waits[::-1]

    def policy_state(self, policy: str) -> Mapping[str, object]:
        """The state of the policy after its last round; empty if it never ran."""
        query = "SELECT system, state FROM policy_state WHERE system = ?"
        states = self._parse_each("policy_state", lambda row: json_object(row, "state"), query, policy, key="system")
        return next(iter(states), {})

    def switch(self, name: str) -> SwitchRow | None:
        """A switch, None if it is not set. A switch whose row cannot be read counts as set."""
        query = "SELECT name, value, set_by, at FROM switches WHERE name = ?"
        switches = self._parse_each("switches", _switch, query, name, key="name")
        if switches or not self._rows(query, name):
            return next(iter(switches), None)
        return SwitchRow(name, "the reason in the database is unreadable", "an unknown user", 0.0)

    def unreadable_rows(self) -> tuple[UnreadableRow, ...]:
        """The rows that were left out: by the rounds of the last day, and by this store so far."""
        rows: tuple[UnreadableRow, ...] = ()
        if self._rows("SELECT 1 FROM sqlite_master WHERE name = 'unreadable'"):  # an older release had none
            query = "SELECT rowid AS id, place, row, problem FROM unreadable ORDER BY at DESC, place, row LIMIT ?"
            rows = self._parse_each("unreadable", _unreadable_row, query, _MAX_UNREADABLE)
        unreadable = {(row.table, row.row): row for row in (*rows, *self._unreadable)}
        return tuple(unreadable.values())

    def _rounds(self, which: str, *arguments: int) -> tuple[RoundRow, ...]:
        return self._parse_each("rounds", _round, f"{_ROUND} WHERE mode != 'release' {which}", *arguments)

    def _parse_each(
        self, table: str, parse: Callable[[DatabaseRow], T], query: str, *arguments: str | float | None, key: str = "id"
    ) -> tuple[T, ...]:
        """The readable rows of `table`, parsed; unreadable ones are added to `unreadable_rows`."""
        return self._unreadable.parse_each(table, key, parse, map(dict, self._rows(query, *arguments)))

    def _rows(self, query: str, *arguments: str | float | None) -> Sequence[sqlite3.Row]:
        try:
            return self._connection.execute(query, arguments).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if a message quotes a damaged schema
            raise _unreadable_error(self._path, error) from error


@contextmanager
def open_read_only(path: Path) -> Iterator[ReadOnlyStore]:
    """A consistent snapshot of the database at `path`. Raises NoDatabaseError, UnreadableError."""
    try:
        if not path.exists():
            raise NoDatabaseError(f"no round has been recorded in {path} yet: start 'synsched run'")
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=READ_TIMEOUT)
    except (sqlite3.Error, OSError) as error:
        raise _unreadable_error(path, error) from error
    try:
        connection.row_factory = sqlite3.Row
        connection.text_factory = decode_text
        connection.execute("BEGIN")
        yield ReadOnlyStore(connection, path)
    finally:
        connection.close()


def _unreadable_error(path: Path, error: Exception) -> UnreadableError:
    message = str(error)
    match error:
        case PermissionError():
            advice = "ask the administrator to let you read it"
        case sqlite3.OperationalError() if "locked" in message or "busy" in message:
            advice = "another process is writing: try again in a moment"
        case sqlite3.OperationalError() if "no such table" in message:
            advice = "no round has been recorded in it yet: start 'synsched run'"
        case sqlite3.OperationalError() if "readonly" in message or "unable to open" in message:
            advice = "check its permissions; 'synsched run' completes an interrupted write"
        case _:
            advice = "move it away and start 'synsched run' for a new one"
    return UnreadableError(f"cannot read {path} ({printable_line(message)}): {advice}")


def _round(row: DatabaseRow) -> RoundRow:
    counts = ("id", "nodes", "jobs", "managed", "running", "waiting", "reads", "writes")
    seconds = ("finished", "observe_s", "decide_s", "plan_s", "apply_s")
    for column in counts:
        integer(row, column)
    for column in seconds:
        optional_number(row, column)
    for column in ("mode", "system", "ordering", "error"):
        text(row, column)
    number(row, "started")
    return RoundRow(**row)


def _recording(row: DatabaseRow) -> tuple[int, bytes]:
    if not isinstance(row["snapshot"], bytes):
        raise ValueError("snapshot is not a recording")
    return row["id"], row["snapshot"]


def _event(row: DatabaseRow) -> EventRow:
    return EventRow(
        at=number(row, "at"),
        round=None if row["round"] is None else integer(row, "round"),
        job=text(row, "job"),
        kind=text(row, "kind"),
        code=text(row, "code"),
        sentence=text(row, "sentence"),
    )


def _rate(row: DatabaseRow) -> RateRow:
    hints = json_object(row, "summary").get("hints", {})
    model, task = (str(hints.get(key) or "") if isinstance(hints, dict) else "" for key in ("model", "task"))
    return RateRow(text(row, "job"), text(row, "owner"), model, task, parse_rate(row))


def _rejected_report(row: DatabaseRow) -> RejectedReportRow:
    return RejectedReportRow(text(row, "subject"), text(row, "sentence"), number(row, "at"))


def _set_aside(row: DatabaseRow) -> SetAsideRow:
    return SetAsideRow(
        text(row, "job"), text(row, "owner"), text(row, "reason"), number(row, "since"), boolean(row, "readable")
    )


def _told_start(row: DatabaseRow) -> tuple[bool, float]:
    """Whether a job started within the range told, and by how many seconds the median was off. What was told to be
    after the horizon counts as the horizon."""
    started, until = number(row, "started"), number(row, "until")
    low, middle, high = (optional_number(row, name) for name in ("low", "median", "high"))
    error = max(0.0, until - started) if middle is None else abs(started - middle)
    return was_in_range(started, ExpectedTime(low, middle, high), until), error


def _switch(row: DatabaseRow) -> SwitchRow:
    return SwitchRow(text(row, "name"), text(row, "value"), text(row, "set_by"), number(row, "at"))


def _unreadable_row(row: DatabaseRow) -> UnreadableRow:
    return UnreadableRow(text(row, "place"), text(row, "row"), text(row, "problem"))


def _job(row: DatabaseRow) -> JobRow:
    return JobRow(
        id=text(row, "id"),
        owner=text(row, "owner"),
        name=text(row, "name"),
        first_seen=number(row, "first_seen"),
        last_seen=number(row, "last_seen"),
        state=JobState(text(row, "state")),
        original=decoded_value(Request, row, "original"),
        held_by_us=boolean(row, "held_by_us"),
        reshaped=boolean(row, "reshaped"),
        boosted=boolean(row, "boosted"),
        rank=None if row["rank"] is None else integer(row, "rank"),
        rank_key=text(row, "rank_key"),
        reason=json_object(row, "reason") if row["reason"] is not None else {},
        sentence=text(row, "sentence"),
        target=decoded_value(Target, row, "target") if row["target"] is not None else None,
        summary=json_object(row, "summary"),
    )


def _operation(row: DatabaseRow) -> OperationRow:
    commands = json_value(row, "commands")
    if not isinstance(commands, list):
        raise ValueError("commands is not a list")
    return OperationRow(
        id=row["id"],
        round=integer(row, "round"),
        position=integer(row, "position"),
        verb=Verb(text(row, "verb")),
        subject=text(row, "subject"),
        reason=decoded_value(Reason, row, "reason"),
        sentence=text(row, "sentence"),
        undo=decoded_value(Operation, row, "undo") if row["undo"] is not None else None,
        result=Result(text(row, "result")),
        commands=tuple(map(str, commands)),
        detail=text(row, "detail"),
        intended=number(row, "intended"),
        finished=optional_number(row, "finished"),
    )
