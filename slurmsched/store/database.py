"""The SQLite file: opened for one writer, safe against power loss, readable by its owner alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlite_utils

from slurmsched.store.columns import text_of
from slurmsched.store.errors import told_apart
from slurmsched.store.privacy import private_file, private_folder
from slurmsched.store.unreadable import UnreadableRows

__all__ = ["Database"]

PATIENCE: Final = 5.0
"""Seconds to wait for another writer, such as `synsched pause`."""

_BESIDE: Final = ("-journal", "-wal", "-shm")
"""What SQLite may have left beside the file after a crash."""

_EACH: Final = "SELECT value FROM json_each(?)"

Parameters = Sequence[Any] | dict[str, Any]


class Database:
    """A connection whose every error is a StoreError and whose every transaction is begun in the open.

    Rollback journal rather than write-ahead log: it works on every file system, and one file is all there is to copy.
    A transaction waits for those who read, so whoever may open the file could keep rounds from being recorded: that is
    its owner and root alone. Our own commands read in moments. What remains is a process of these two that keeps a read
    transaction open, such as an `sqlite3` shell after BEGIN or one that was stopped: then rounds fail with a
    BusyStoreError that names the command to find it, and go on when it ends.
    `synchronous=FULL`: what is committed survives power loss, which the journal of operations relies on.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """`connection` is ours from here on."""
        connection.text_factory = text_of
        self.path = path
        self.unreadable = UnreadableRows()
        self._database = sqlite_utils.Database(connection)

    @classmethod
    def open(cls, path: Path) -> Database:
        """The database at `path`, begun if it is not there; its folder must be. Raises StoreError.

        From here on its owner alone can read it.
        """
        for folder in dict.fromkeys((path.absolute().parent, path.resolve().parent)):
            private_folder(folder)
        private_file(path.resolve())
        for beside in _BESIDE:
            if (other := path.resolve().with_name(path.resolve().name + beside)).exists():
                private_file(other)
        return cls._opened(str(path), path)

    @classmethod
    def in_memory(cls) -> Database:
        """One that is gone with the process, for simulated clusters."""
        return cls._opened(":memory:", Path(":memory:"))

    @classmethod
    def _opened(cls, where: str, path: Path) -> Database:
        with told_apart(path):
            connection = sqlite3.connect(where, timeout=PATIENCE, isolation_level=None)
            try:
                for pragma in ("journal_mode = DELETE", "synchronous = FULL", "foreign_keys = ON"):
                    connection.execute(f"PRAGMA {pragma}")
            except sqlite3.Error:
                connection.close()
                raise
            return cls(connection, path)

    def close(self) -> None:
        """Further use is an error."""
        self._database.conn.close()

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables."""
        with told_apart(self.path):
            return frozenset(self._database.table_names())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or none of it, on disk when the block is left.

        A block within a block belongs to the outer.
        """
        connection = self._database.conn
        if connection.in_transaction:
            yield
            return
        with told_apart(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has rolled back by itself when the disk is full
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def until(self, over: Callable[[], bool], each: int) -> Iterator[None]:
        """Inside the block a query raises InterruptedStoreError once it is over; asked every `each` steps of SQLite's
        machine."""
        connection = self._database.conn
        connection.set_progress_handler(over, each)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    def copy_to(self, copy: sqlite3.Connection) -> None:
        """Everything as of one moment; readers and writers go on."""
        with told_apart(self.path):
            self._database.conn.backup(copy)

    def rows(self, query: str, parameters: Parameters = ()) -> list[dict[str, Any]]:
        """What a query gives, one dict per row; SQLite types its values row by row, hence `Any`."""
        with told_apart(self.path):
            return list(self._database.query(query, parameters))

    def rows_of(self, query: str, jobs: Iterable[str], parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Those of these jobs alone: `{jobs}` in the query, before all parameters, stands for their numbers."""
        return self.rows(query.replace("{jobs}", _EACH), (json.dumps(list(jobs)), *parameters))

    def write(self, statement: str, parameters: Parameters = ()) -> int:
        """One change; the row id of what was inserted last."""
        with self.transaction(), told_apart(self.path):
            return self._database.conn.execute(statement, parameters).lastrowid or 0

    def write_of(self, statement: str, jobs: Iterable[str]) -> None:
        """One change to the rows of these jobs alone: `{jobs}` in the statement stands for their numbers."""
        self.write(statement.replace("{jobs}", _EACH), (json.dumps(list(jobs)),))

    def insert(self, table: str, row: dict[str, Any]) -> int:
        """A new row; its id."""
        columns, places = ", ".join(row), ", ".join(f":{column}" for column in row)
        return self.write(f"INSERT INTO {table} ({columns}) VALUES ({places})", row)  # noqa: S608 our own names

    def write_many(self, statement: str, rows: Iterable[Parameters]) -> None:
        """The same change for each row."""
        with self.transaction(), told_apart(self.path):
            self._database.conn.executemany(statement, rows)
