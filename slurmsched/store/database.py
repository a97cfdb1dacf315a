"""The SQLite file: one writer, durable against power loss, accessible to its owner only."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import sqlite_utils

from slurmsched.store.errors import CorruptStoreError, StoreError, StoreNotWritableError, translate_sqlite_errors
from slurmsched.store.rows import UnreadableRows, decode_text

_OWNER_ONLY: Final = 0o600
_NOT_OWNER: Final = 0o077
_WRITABLE_BY_OTHERS: Final = 0o022


class _Row(dict[str, Any]):
    """A row of a result. A column that it lacks is one whose name is damaged in the file."""

    def __missing__(self, column: str) -> Any:
        raise CorruptStoreError(
            f"the database is damaged: move the file of storage.path away, a new one is created (no column {column})"
        )


def as_row(columns: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """The row with these values."""
    return _Row(zip(columns, values, strict=True))


class InsecureFolderError(StoreError):
    """Other users could replace the files in the folder."""


def check_private_folder(folder: Path) -> None:
    """Check that the folder exists, that neither its group nor others may write into it, and that it belongs to us or
    to root (as root, any owner passes). Raises InsecureFolderError, StoreNotWritableError.
    """
    try:
        status = folder.stat()
    except OSError as error:
        raise StoreNotWritableError(f"the folder {folder} does not exist: create it, or set storage.path") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreNotWritableError(f"{folder} is not a folder: set storage.path")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise InsecureFolderError(f"others may write into {folder}: 'chmod go-w {folder}', or set storage.path")
    if os.geteuid() and status.st_uid not in (0, os.geteuid()):
        raise InsecureFolderError(f"{folder} belongs to another user: run as that user, or set storage.path")
    if not os.access(folder, os.W_OK):
        raise StoreNotWritableError(f"cannot write into {folder}: run as the user who owns it, or set storage.path")


def ensure_private_file(path: Path) -> None:
    """Make sure that the file exists and that only its owner may read and write it, whatever the umask.

    SQLite gives its journal the same mode. An existing file is not opened: closing it would drop this process's locks
    on it. Its folder is private, so no other user can replace it meanwhile. Raises StoreNotWritableError.
    """
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ONLY)
            try:
                os.fchmod(descriptor, _OWNER_ONLY)
            finally:
                os.close(descriptor)
            return
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise StoreNotWritableError(f"cannot write {path}: it is not a regular file; set storage.path")
        if status.st_mode & _NOT_OWNER:
            path.chmod(_OWNER_ONLY)
    except OSError as error:
        raise StoreNotWritableError(
            f"cannot write {path} ({error.strerror}): run as the user who owns it and its folder"
        ) from error


BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another writer, such as `synsched pause`."""

_SIDE_FILES: Final = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite may leave beside the database after a crash."""

_JOB_IDS: Final = "SELECT value FROM json_each(?)"

Parameters = Sequence[Any] | dict[str, Any]


_PRAGMAS: Final = ("journal_mode = DELETE", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON")
"""With the last one deleted rows are overwritten: what users had forgotten is in no free page of the file, whatever
SQLite was built with."""


class Database:
    """A connection whose errors are StoreErrors and whose transactions are explicit.

    It uses a rollback journal rather than a write-ahead log: that works on every file system, and there is one file to
    copy. A commit waits for readers, so only the file's owner and root may open it. If one of them keeps a read
    transaction open (an `sqlite3` shell after BEGIN, a stopped process), rounds fail with a BusyStoreError that names
    the command to find it, and continue when it ends. `synchronous=FULL`: commits survive power loss, which the journal
    of operations relies on.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Takes over `connection`."""
        connection.text_factory = decode_text
        self.path = path
        self.unreadable_rows = UnreadableRows()
        self._database = sqlite_utils.Database(connection)

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open the database at `path`, created if missing, for its owner only; its folder must exist.

        Raises StoreError.
        """
        for folder in dict.fromkeys((path.absolute().parent, path.resolve().parent)):
            check_private_folder(folder)
        ensure_private_file(path.resolve())
        for suffix in _SIDE_FILES:
            if (side_file := path.resolve().with_name(path.resolve().name + suffix)).exists():
                ensure_private_file(side_file)
        return cls._connect(str(path), path)

    @classmethod
    def in_memory(cls) -> Database:
        """A database in memory, for simulated clusters."""
        return cls._connect(":memory:", Path(":memory:"))

    @classmethod
    def _connect(cls, target: str, path: Path) -> Database:
        with translate_sqlite_errors(path):
            connection = sqlite3.connect(target, timeout=BUSY_TIMEOUT, isolation_level=None)
            try:
                for pragma in _PRAGMAS:
                    connection.execute(f"PRAGMA {pragma}")
            except sqlite3.Error:
                connection.close()
                raise
            return cls(connection, path)

    def close(self) -> None:
        """Close the connection; further use raises."""
        self._database.conn.close()

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables."""
        with translate_sqlite_errors(self.path):
            return frozenset(self._database.table_names())

    @property
    def version(self) -> int:
        """A number that changes when another connection writes, and not by what this one does."""
        return int(self.rows("PRAGMA data_version")[0]["data_version"])

    @property
    def changes(self) -> tuple[int, int]:
        """Numbers that change when another connection writes, and when this one does."""
        return self.version, self._database.conn.total_changes

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the block as a whole, on disk when it is left, or roll it back; an inner block joins the outer one."""
        connection = self._database.conn
        if connection.in_transaction:
            yield
            return
        with translate_sqlite_errors(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has rolled back by itself when the disk is full
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def interruptible(self, is_over: Callable[[], bool], every_steps: int) -> Iterator[None]:
        """Inside the block a query raises InterruptedStoreError once `is_over`, which is called every `every_steps`
        instructions of SQLite's virtual machine, returns true."""
        connection = self._database.conn
        connection.set_progress_handler(is_over, every_steps)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    def copy_to(self, copy: sqlite3.Connection) -> None:
        """Copy a consistent snapshot of the database; readers and writers continue."""
        with translate_sqlite_errors(self.path):
            self._database.conn.backup(copy)

    def rows(self, query: str, parameters: Parameters = ()) -> list[dict[str, Any]]:
        """The result of a query, one dict per row; SQLite types each value by itself, hence `Any`."""
        columns, found = self.values(query, parameters)
        return [as_row(columns, values) for values in found]

    def values(self, query: str, parameters: Parameters = ()) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """The columns of the result of a query, and the values of each row, of which `as_row` makes a dict."""
        with translate_sqlite_errors(self.path):
            found = self._database.conn.execute(query, parameters)
            return [column for column, *_ in found.description or ()], found.fetchall()

    def rows_of_jobs(self, query: str, jobs: Iterable[str], parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The result for these jobs only: `{jobs}` in the query, before all parameters, stands for their ids."""
        return self.rows(query.replace("{jobs}", _JOB_IDS), (json.dumps(list(jobs)), *parameters))

    def write(self, statement: str, parameters: Parameters = ()) -> int:
        """Run one statement; returns the id of the row inserted last, or 0."""
        with self.transaction(), translate_sqlite_errors(self.path):
            return self._database.conn.execute(statement, parameters).lastrowid or 0

    def write_for_jobs(self, statement: str, jobs: Iterable[str]) -> None:
        """Change only the rows of these jobs: `{jobs}` in the statement stands for their ids."""
        self.write(statement.replace("{jobs}", _JOB_IDS), (json.dumps(list(jobs)),))

    def insert(self, table: str, row: dict[str, Any]) -> int:
        """Insert a row; returns its id."""
        columns, placeholders = ", ".join(row), ", ".join(f":{column}" for column in row)
        return self.write(f"INSERT INTO {table} ({columns}) VALUES ({placeholders})", row)  # noqa: S608 our own names

    def write_many(self, statement: str, rows: Iterable[Parameters]) -> None:
        """Run the statement once for each row of parameters."""
        with self.transaction(), translate_sqlite_errors(self.path):
            self._database.conn.executemany(statement, rows)
