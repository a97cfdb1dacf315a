"""Published documents: the part of the database that users who cannot read the database are shown.

A document holds tables of the database as JSON:

    {"version": 1, "at": UNIX_TIME, "hidden": ["jobs", ...], "tables": {"jobs": [{"id": "12", ...}, ...], ...}}

Columns are listed one by one, so that a new column is private by default. Recordings, which hold the comments of all
jobs, are never published. `hidden` lists what PrivateData of slurm.conf withheld from the reader. `status` reads the
document CURRENT; `explain` and `history` read HISTORY too. Users read files, or a socket of the daemon where something
is private. What is learnt of a user's runs is always private, and what follows from them of jobs that wait or run, and
which GPUs of the user's running jobs are idle: it is in no file, and the daemon tells it to that user and to Operators
alone.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from slurmsched.model import SynschedError
from slurmsched.package_data import package_data
from slurmsched.settings.definition import StorageSettings
from slurmsched.store.read_only import ReadOnlyStore

VERSION: Final = 1

DocumentRow = Mapping[str, Any]
"""A row of a table; values are texts, numbers or None."""
Tables = Mapping[str, Sequence[DocumentRow]]


class ExportError(SynschedError):
    """A published document cannot be written or read."""


class DocumentKind(StrEnum):
    """A document; the value is the name of its file."""

    CURRENT = "current"
    HISTORY = "history"


class PrivateRequest(StrEnum):
    """What a user asks the daemon for by connecting to a socket; the value is its name. Nothing is read from the user,
    whose name the kernel tells."""

    LEARNT = "learnt"
    """The runs that ended, from which something is learnt of the user's work."""
    FORGET = "forget"
    """That what was learnt of the user is deleted."""


_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "rounds": (
        *("id", "started", "finished", "mode", "system", "ordering", "nodes", "jobs", "managed", "running", "waiting"),
        *("observe_s", "decide_s", "plan_s", "apply_s", "reads", "writes", "error", "overview"),
    ),
    "jobs": (
        *("id", "owner", "name", "first_seen", "last_seen", "state", "original", "held_by_us", "reshaped", "boosted"),
        *("rank", "rank_key", "reason", "sentence", "target", "summary"),
    ),
    "upkeep": ("name", "at"),
    "set_aside": ("job", "owner", "partition", "reason", "since", "mark"),
    "switches": ("name", "value", "set_by", "at"),
    "policy_state": ("system", "state"),
    "events": ("id", "at", "round", "job", "kind", "code", "sentence"),
    "operations": (
        *("id", "round", "position", "verb", "subject", "reason", "sentence", "undo", "result", "commands", "detail"),
        *("intended", "finished"),
    ),
    "service": ("job", "run_started", "gpu_seconds"),
    "rates": (
        *("job", "gpu_type", "gpus", "nodes", "cpus", "memory", "fair_cpus", "fair_memory", "steps", "seconds", "at"),
    ),
    "start_forecasts": (
        *("job", "which", "at", "told", "until", "draws", "start_low", "start_median", "start_high"),
        *("end_low", "end_median", "end_high", "why"),
    ),
    "idle_gpus": ("job", "owner", "gpus", "idle", "since", "at", "agreed"),
    "finished_runs": (
        *("job", "ended", "owner", "name", "work", "model", "script", "folder", "array_job", "end", "seconds"),
        *("time_limit", "gpus", "gpu_type", "cpus", "memory", "nodes", "cpu_seconds", "gathered", "peak_memory"),
        *("gpu_use", "peak_gpu_use", "gpu_memory", "idle_gpus"),
    ),
}
TICKET_POLICIES: Final = ("gandiva-fair", "unified")
"""The policies whose state is published, for `status --shares`."""
_TICKET_KEYS: Final = ("time", "users", "trades", "prices")
"""The keys of that state that are published."""
_PUBLISHED_ROUNDS: Final = (
    "id IN (SELECT max(id) FROM rounds WHERE mode != 'release') OR id IN (SELECT max(id) FROM rounds"
    " WHERE mode != 'release' AND finished IS NOT NULL AND error = '')"
    " OR id IN (SELECT max(id) FROM rounds WHERE overview IS NOT NULL)"
)
_LAST_DEVICES: Final = (
    "kind = 'device' AND round = (SELECT max(id) FROM rounds"
    " WHERE mode != 'release' AND finished IS NOT NULL AND error = '')"
)
_EXPLANATION_COLUMN: Final = "reason"
"""The larger half of a job's row, which `status` does not show."""
_QUERY_BATCH: Final = 500
"""Maximum number of jobs in one query."""
MOST_FORECASTS: Final = 10_000
"""Maximum number of waiting jobs of which it is kept and published when they start, those that start first."""
_MAX_ENDED_JOBS: Final = 2000
"""Maximum number of finished jobs that are published, the latest."""
_MAX_RUNS_OF_USER: Final = 5_000
_MAX_RUNS_OF_ALL: Final = 20_000
"""Maximum number of runs that one user, or an Operator, is told, the latest."""
OTHERS_IDLE: Final = "idle GPUs of others"
"""In `hidden` of a document without running jobs of others that have idle GPUs: whatever PrivateData says, how busy a
job keeps its GPUs is told to its owner and to Operators alone."""
OTHERS_LEARNT: Final = "what was learnt of jobs of others"
"""In `hidden` of a document without what earlier runs, or reports, of others told of their jobs: how long one that
waits will run, its measured rates, how sensitive it is. Like idle GPUs, whatever PrivateData says."""
ALWAYS_PRIVATE: Final = frozenset({OTHERS_IDLE, OTHERS_LEARNT})
"""What is in `hidden` of documents although PrivateData hides nothing."""
OTHERS_RUNS: Final = "runs of others"
"""In `hidden` of a document with the runs of one user."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as one reader may see it; `at` in unix seconds."""

    at: float
    tables: Tables
    hidden: frozenset[str] = frozenset()

    def to_json(self) -> bytes:
        """The document as JSON in ASCII."""
        content = {"version": VERSION, "at": self.at, "hidden": sorted(self.hidden), "tables": self.tables}
        return json.dumps(content, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes, source: str) -> Document:
        """The document that `to_json` encoded; `source` names it in messages. Raises ExportError."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ExportError(f"{source} is damaged ({error}): the next round rewrites it") from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ExportError(f"{source} is of another version: use the version that 'synsched run' has")
        try:
            tables = {str(name): [dict(row) for row in rows] for name, rows in content["tables"].items()}
            return cls(float(content["at"]), tables, frozenset(map(str, content["hidden"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportError(f"{source} is damaged ({error!r}): the next round rewrites it") from error


@dataclass(frozen=True, slots=True)
class PublishedContents:
    """Both documents with nothing hidden, the owner of each job in them, and the database that they are from."""

    at: float
    tables: Mapping[DocumentKind, Tables]
    owners: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None


def collect_contents(path: Path, at: float, ended_after: float) -> PublishedContents:
    """Read everything that is published of the database at `path`: unfinished jobs, and the latest finished ones last
    seen after `ended_after`. Both times are unix seconds. Raises ExportError.
    """
    with _snapshot(path) as connection:
        return replace(_collected(connection, at, ended_after), path=path)


def collect_runs(path: Path, at: float, owner: str | None) -> Document:
    """Read the latest runs that have ended of this owner, of all for None, and which running jobs have idle GPUs, from
    the database at `path`. Raises ExportError."""
    most, which = (_MAX_RUNS_OF_ALL, ":owner IS NULL") if owner is None else (_MAX_RUNS_OF_USER, "owner = :owner")
    with _snapshot(path) as connection:
        tables = {
            table: [
                _document_row(row)
                for row in connection.execute(
                    f"SELECT {', '.join(_COLUMNS[table])} FROM {table} WHERE {which}"  # noqa: S608 - our own names
                    f" ORDER BY {latest} DESC LIMIT :most",
                    {"owner": owner, "most": most},
                )
            ]
            for table, latest in (("finished_runs", "ended"), ("idle_gpus", "at"))
        }
    return Document(at, tables, frozenset() if owner is None else frozenset({OTHERS_RUNS}))


@contextmanager
def _snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """The database at `path` as it is now. Raises ExportError, also for errors of the queries."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda data: data.decode("utf-8", "replace")  # a damaged text costs itself only
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise ExportError(f"cannot publish {path} ({error}): 'synsched doctor' checks it") from error


def _collected(connection: sqlite3.Connection, at: float, ended_after: float) -> PublishedContents:
    def rows(table: str, which: str, *arguments: object) -> list[dict[str, Any]]:
        present = {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
        columns = ", ".join(column for column in _COLUMNS[table] if column in present)
        if not columns:
            return []
        query = f"SELECT {columns} FROM {table} WHERE {which}"  # noqa: S608 - our own names
        return [_document_row(row) for row in connection.execute(query, arguments)]

    def of_jobs(table: str, column: str, jobs: Sequence[str]) -> list[dict[str, Any]]:
        selected = []
        for first in range(0, len(jobs), _QUERY_BATCH):
            batch = jobs[first : first + _QUERY_BATCH]
            selected += rows(table, f"{column} IN ({', '.join('?' * len(batch))})", *batch)
        return selected

    unfinished = rows("jobs", "state != 'finished'")
    ended = rows(
        "jobs", "state = 'finished' AND last_seen > ? ORDER BY last_seen DESC LIMIT ?", ended_after, _MAX_ENDED_JOBS
    )
    aside = [_without_fingerprint(row) for row in rows("set_aside", "1")]
    published_jobs = [str(row["id"]) for row in (*unfinished, *ended)]
    current = {
        "rounds": _with_latest_overview(rows("rounds", _PUBLISHED_ROUNDS)),
        "jobs": [{column: row[column] for column in row if column != _EXPLANATION_COLUMN} for row in unfinished],
        "upkeep": rows("upkeep", "name = 'polled'"),
        "set_aside": aside,
        "switches": rows("switches", "1"),
        "policy_state": [
            _ticket_state(row) for name in TICKET_POLICIES for row in rows("policy_state", "system = ?", name)
        ],
        "events": rows("events", _LAST_DEVICES),
        "idle_gpus": rows("idle_gpus", "1"),
        "start_forecasts": rows("start_forecasts", "which = 'last' LIMIT ?", MOST_FORECASTS),
    }
    history = {
        "jobs": [*ended, *unfinished],
        "events": of_jobs("events", "job", published_jobs),
        "operations": of_jobs("operations", "subject", published_jobs),
        "service": of_jobs("service", "job", published_jobs),
        "rates": of_jobs("rates", "job", [str(row["id"]) for row in unfinished]),
    }
    owners = {str(row["job"]): str(row["owner"]) for row in aside}
    owners |= {str(row["id"]): str(row["owner"]) for row in (*ended, *unfinished)}
    return PublishedContents(at, {DocumentKind.CURRENT: current, DocumentKind.HISTORY: history}, owners)


def _document_row(row: sqlite3.Row) -> dict[str, Any]:
    """The row with bytes, which JSON lacks and a damaged database may hold in any column, decoded."""
    if bytes not in map(type, row):
        return dict(row)
    return {
        column: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for column, value in dict(row).items()
    }


def _without_fingerprint(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the fingerprint reduced to whether the job's record could be read."""
    return {**row, "mark": "read" if row.get("mark") else ""}


def _with_latest_overview(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without their overviews except the latest."""
    surveyed = max((row["id"] for row in rows if row["overview"] is not None), default=None)
    return [row if row["id"] == surveyed else {**row, "overview": None} for row in rows]


def _ticket_state(row: dict[str, Any]) -> dict[str, Any]:
    try:
        state = json.loads(row["state"])
    except (ValueError, RecursionError):
        state = None
    shown = {key: state.get(key) for key in _TICKET_KEYS} if isinstance(state, dict) else {}
    return {**row, "state": json.dumps(shown)}


@contextmanager
def open_documents(documents: Sequence[Document], path: Path) -> Iterator[ReadOnlyStore]:
    """The documents as a database to query; `path` is named in messages. Later documents take precedence per row.

    Raises ExportError.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        scripts = (file for file in package_data("sql").iterdir() if file.name.endswith(".sql"))
        for script in sorted(scripts, key=lambda file: file.name):
            connection.executescript(script.read_text(encoding="utf-8"))
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{trigger}"')
        connection.execute("BEGIN")
        try:
            for document in reversed(documents):
                for table, rows in document.tables.items():
                    _insert(connection, table, rows)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise ExportError(f"{path} holds data that this version does not know ({error})") from error
        yield ReadOnlyStore(connection, path)


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[DocumentRow]) -> None:
    """Insert the rows; those already present and those that violate a constraint are skipped."""
    columns = _COLUMNS.get(table, ())
    known = [column for column in columns if rows and column in rows[0]]
    if known:
        connection.executemany(
            f"INSERT OR IGNORE INTO {table} ({', '.join(known)})"  # noqa: S608 - our own names
            f" VALUES ({', '.join(f':{column}' for column in known)})",
            rows,
        )


FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EXPORT_FOLDER: Final = "export"
_ANSWER_TIMEOUT: Final = 5.0
"""Seconds that a daemon may take to answer."""
_SEND_TIMEOUT: Final = struct.pack("@ll", int(_ANSWER_TIMEOUT), 0)
"""The same as a `struct timeval` of the kernel."""
_MAX_DOCUMENT: Final = 1 << 28
_CHUNK: Final = 1 << 16


class NotPublishedError(ExportError):
    """No document has been published yet."""


@dataclass(frozen=True, slots=True)
class PublishedDocuments:
    """Documents as the caller may see them; `note` says what is hidden and why, empty if nothing is."""

    documents: tuple[Document, ...]
    note: str = ""


def export_folder(storage: StorageSettings) -> Path:
    """The folder of the documents: storage.export, by default `export` beside the database."""
    return Path(storage.export) if storage.export else Path(storage.path).with_name(_EXPORT_FOLDER)


def read_published(folder: Path, kinds: Sequence[DocumentKind]) -> PublishedDocuments:
    """The documents as the caller may see them. Raises NotPublishedError, ExportError."""
    public = tuple(_read_file(folder / f"{kind.value}.json") for kind in kinds)
    hidden = frozenset[str]().union(*(document.hidden for document in public))
    if not hidden:
        return PublishedDocuments(public)
    private = [_read_socket(folder, kind) for kind in kinds]
    if all(private):
        return PublishedDocuments(tuple(document for document in private if document is not None))
    hidden -= ALWAYS_PRIVATE
    if not hidden:
        return PublishedDocuments(public)
    return PublishedDocuments(public, f"PrivateData of slurm.conf hides {', '.join(sorted(hidden))}: {_NO_ANSWER}")


def read_public(folder: Path) -> Document:
    """The document CURRENT as everybody may see it, whoever asks. Raises NotPublishedError, ExportError."""
    return _read_file(folder / f"{DocumentKind.CURRENT.value}.json")


def read_runs(folder: Path) -> Document:
    """The runs that ended of the caller, of all for an Operator. Raises ExportError."""
    document = _read_socket(folder, PrivateRequest.LEARNT)
    if document is None:
        raise ExportError("only a running daemon on this host shows you what was learnt of your runs, and none answers")
    return document


def ask_to_forget(folder: Path) -> None:
    """Ask the daemon to delete what was learnt of the caller. Raises ExportError."""
    if _read_socket(folder, PrivateRequest.FORGET) is None:
        raise ExportError("only a running daemon on this host deletes what was learnt of you, and none answers")


_NO_ANSWER: Final = "only a running daemon on this host shows you your own jobs, and none answers"


def _read_file(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_DOCUMENT)
    except FileNotFoundError as error:
        raise NotPublishedError(
            f"nothing has been published in {path.parent} yet: is 'synsched run' running?"
        ) from error
    except OSError as error:
        raise NotPublishedError(f"cannot read {path} ({error.strerror}): ask the administrator for it") from error
    return Document.from_json(data, str(path))


def _read_socket(folder: Path, kind: DocumentKind | PrivateRequest) -> Document | None:
    """The document that the daemon sends us; None if no daemon answers in time."""
    received, deadline = bytearray(), time.monotonic() + _ANSWER_TIMEOUT
    with suppress(OSError):
        descriptor = os.open(folder, FOLDER_FLAGS)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                # A blocking connect waits while the backlog is full; with Python's timeout it would fail at once.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
                connection.connect(f"/proc/self/fd/{descriptor}/{kind.value}.sock")
                while (left := deadline - time.monotonic()) > 0 and len(received) <= _MAX_DOCUMENT:
                    connection.settimeout(left)
                    chunk = connection.recv(_CHUNK)
                    if not chunk:
                        break
                    received += chunk
        finally:
            os.close(descriptor)
    with suppress(ExportError):
        return Document.from_json(bytes(received), str(folder / f"{kind.value}.sock"))
    return None
