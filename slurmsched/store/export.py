"""What the daemon publishes of its database, for those who may not read the database itself.

A document holds the same tables as the database, as far as people are shown them, as JSON:

    {"version": 1, "at": UNIX_TIME, "hidden": ["jobs", ...], "tables": {"jobs": [{"id": "12", ...}, ...], ...}}

Columns are named here one by one, so that a new one is private until somebody decides otherwise. Recordings, which hold
the comments of all jobs, are never among them. `hidden` is what PrivateData of slurm.conf withheld from the document's
reader. There are two documents: CURRENT is what each `status` reads; `explain` and `history` read HISTORY over it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from slurmsched.model import SynschedError
from slurmsched.shipped import shipped
from slurmsched.store.reading import Reading

__all__ = ["Contents", "Document", "ExportError", "Part", "collect", "opened"]

VERSION: Final = 1

Row = Mapping[str, Any]
"""A row as SQLite gives it and JSON takes it: values are texts, numbers or None."""
Tables = Mapping[str, Sequence[Row]]


class ExportError(SynschedError):
    """A published document cannot be written or read."""


class Part(StrEnum):
    """A document, by the name of its file."""

    CURRENT = "current"
    HISTORY = "history"


_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "rounds": (
        *("id", "started", "finished", "mode", "system", "ordering", "nodes", "jobs", "managed", "running", "waiting"),
        *("observe_s", "decide_s", "plan_s", "apply_s", "reads", "writes", "error", "overview"),
    ),
    "jobs": (
        *("id", "owner", "name", "first_seen", "last_seen", "state", "original", "held_by_us", "reshaped", "boosted"),
        *("rank", "rank_key", "reason", "sentence", "target", "summary"),
    ),
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
}
_TICKETS: Final = "gandiva-fair"
"""The system of whose memory people are shown something (`status --shares`), and what of it."""
_TICKETS_SHOWN: Final = ("time", "users", "trades")
_ROUNDS: Final = (
    "id IN (SELECT max(id) FROM rounds WHERE mode != 'release') OR id IN (SELECT max(id) FROM rounds"
    " WHERE mode != 'release' AND finished IS NOT NULL AND error = '')"
    " OR id IN (SELECT max(id) FROM rounds WHERE overview IS NOT NULL)"
)
_LAST_DEVICES: Final = (
    "kind = 'device' AND round = (SELECT max(id) FROM rounds"
    " WHERE mode != 'release' AND finished IS NOT NULL AND error = '')"
)
_EXPLAINS: Final = "reason"
"""The larger half of a job's row, which no `status` shows."""
_AT_ONCE: Final = 500
"""Jobs asked for in one query."""
_MOST_ENDED: Final = 2000
"""Jobs that have ended and are published still, the latest."""


@dataclass(frozen=True, slots=True)
class Document:
    """One of the two, as somebody may read it; `at` in unix seconds."""

    at: float
    tables: Tables
    hidden: frozenset[str] = frozenset()

    def encoded(self) -> bytes:
        """The JSON, in ASCII."""
        said = {"version": VERSION, "at": self.at, "hidden": sorted(self.hidden), "tables": self.tables}
        return json.dumps(said, separators=(",", ":")).encode("ascii")

    @classmethod
    def decoded(cls, data: bytes, where: str) -> Document:
        """What `encoded` made; `where` is said in messages. Raises ExportError."""
        try:
            said = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ExportError(f"{where} is damaged ({error}): the next round writes it anew") from error
        if not isinstance(said, dict) or said.get("version") != VERSION:
            raise ExportError(f"{where} is of another version: use the version that 'synsched run' has")
        try:
            tables = {str(name): [dict(row) for row in rows] for name, rows in said["tables"].items()}
            return cls(float(said["at"]), tables, frozenset(map(str, said["hidden"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportError(f"{where} is damaged ({error!r}): the next round writes it anew") from error


@dataclass(frozen=True, slots=True)
class Contents:
    """Both documents in full, and the owner of each job in them."""

    at: float
    tables: Mapping[Part, Tables]
    owners: Mapping[str, str] = field(default_factory=dict)


def collect(path: Path, at: float, ended_after: float) -> Contents:
    """Everything that is published of the database at `path`: jobs that live, and of those that have ended the latest,
    seen after `ended_after` (both unix seconds). Raises ExportError.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda data: data.decode("utf-8", "replace")  # a damaged text costs itself only
            connection.execute("BEGIN")
            return _collected(connection, at, ended_after)
    except sqlite3.Error as error:
        raise ExportError(f"cannot publish what {path} holds ({error}): 'synsched doctor' looks at it") from error


def _collected(connection: sqlite3.Connection, at: float, ended_after: float) -> Contents:
    def rows(table: str, which: str, *arguments: object) -> list[dict[str, Any]]:
        there = {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
        columns = ", ".join(column for column in _COLUMNS[table] if column in there)
        if not columns:
            return []
        query = f"SELECT {columns} FROM {table} WHERE {which}"  # noqa: S608 - our own names
        return [
            {column: _plain(value) for column, value in dict(row).items()}
            for row in connection.execute(query, arguments)
        ]

    def of_jobs(table: str, column: str, jobs: Sequence[str]) -> list[dict[str, Any]]:
        found = []
        for first in range(0, len(jobs), _AT_ONCE):
            some = jobs[first : first + _AT_ONCE]
            found += rows(table, f"{column} IN ({', '.join('?' * len(some))})", *some)
        return found

    living = rows("jobs", "state != 'finished'")
    ended = rows(
        "jobs", "state = 'finished' AND last_seen > ? ORDER BY last_seen DESC LIMIT ?", ended_after, _MOST_ENDED
    )
    aside = [_unmarked(row) for row in rows("set_aside", "1")]
    own = [str(row["id"]) for row in (*living, *ended)]
    current = {
        "rounds": _rounds(rows("rounds", _ROUNDS)),
        "jobs": [{column: row[column] for column in row if column != _EXPLAINS} for row in living],
        "set_aside": aside,
        "switches": rows("switches", "1"),
        "policy_state": [_tickets(row) for row in rows("policy_state", "system = ?", _TICKETS)],
        "events": rows("events", _LAST_DEVICES),
    }
    history = {
        "jobs": [*ended, *living],
        "events": of_jobs("events", "job", own),
        "operations": of_jobs("operations", "subject", own),
        "service": of_jobs("service", "job", own),
        "rates": of_jobs("rates", "job", [str(row["id"]) for row in living]),
    }
    owners = {str(row["job"]): str(row["owner"]) for row in aside}
    owners |= {str(row["id"]): str(row["owner"]) for row in (*ended, *living)}
    return Contents(at, {Part.CURRENT: current, Part.HISTORY: history}, owners)


def _plain(value: Any) -> Any:
    """JSON knows no bytes, and any column of a damaged database may hold some."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _unmarked(row: dict[str, Any]) -> dict[str, Any]:
    """Whether a job that is set aside could be read, and not what it looked like."""
    return {**row, "mark": "read" if row.get("mark") else ""}


def _rounds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Only the latest overview is shown."""
    surveyed = max((row["id"] for row in rows if row["overview"] is not None), default=None)
    return [row if row["id"] == surveyed else {**row, "overview": None} for row in rows]


def _tickets(row: dict[str, Any]) -> dict[str, Any]:
    try:
        state = json.loads(row["state"])
    except (ValueError, RecursionError):
        state = None
    shown = {key: state.get(key) for key in _TICKETS_SHOWN} if isinstance(state, dict) else {}
    return {**row, "state": json.dumps(shown)}


@contextmanager
def opened(documents: Sequence[Document], path: Path) -> Iterator[Reading]:
    """The documents as a database to ask; `path` is named in messages. What a later one says of a row counts.

    Raises ExportError.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        scripts = (file for file in shipped("sql").iterdir() if file.name.endswith(".sql"))
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
            raise ExportError(f"{path} holds what this version does not know ({error})") from error
        yield Reading(connection, path)


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Row]) -> None:
    """Add the rows; those that are there, and those that no database of ours would take, are passed over."""
    columns = _COLUMNS.get(table, ())
    known = [column for column in columns if rows and column in rows[0]]
    if known:
        connection.executemany(
            f"INSERT OR IGNORE INTO {table} ({', '.join(known)})"  # noqa: S608 - our own names
            f" VALUES ({', '.join(f':{column}' for column in known)})",
            rows,
        )
