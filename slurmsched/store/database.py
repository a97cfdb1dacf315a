"""The SQLite file: opened for one writer, safe against power loss, readable by its owner alone."""

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

from slurmsched.store.errors import StoreError, StoreNotWritableError, translate_sqlite_errors
from slurmsched.store.rows import UnreadableRows, decode_text

_OWNER_ONLY: Final = 0o600
_NOT_OWNER: Final = 0o077
_WRITABLE_BY_OTHERS: Final = 0o022


class InsecureFolderError(StoreError):
    """Others may put files where ours are, or exchange them."""


def check_private_folder(folder: Path) -> None:
    """Check that a folder is there, and that nobody else may write into it: neither its group nor the world, and that
    it belongs to us, to root, or, where we are root, to the service. Raises StoreError.
    """
    try:
        found = folder.stat()
    except OSError as error:
        raise StoreNotWritableError(f"the folder {folder} does not exist: create it, or set storage.path") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreNotWritableError(f"{folder} is no folder: set storage.path")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise InsecureFolderError(f"others may write into {folder}: 'chmod go-w {folder}', or set storage.path")
    if os.geteuid() and found.st_uid not in (0, os.geteuid()):
        raise InsecureFolderError(f"{folder} belongs to another user: run as that user, or set storage.path")
    if not os.access(folder, os.W_OK):
        raise StoreNotWritableError(f"cannot write into {folder}: run as the user who owns it, or set storage.path")


def ensure_private_file(path: Path) -> None:
    """Make sure that the file is there and that its owner alone may read and write it, whatever the umask.

    SQLite gives its journal the same mode. An existing file is not opened for it: closing it would drop the locks that
    this process has on it. Its folder is private, so nobody exchanges it meanwhile. Raises StoreError.
    """
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ONLY)
            try:
                os.fchmod(descriptor, _OWNER_ONLY)
            finally:
                os.close(descriptor)
            return
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise StoreNotWritableError(f"cannot write {path}: it is no regular file; set storage.path")
        if found.st_mode & _NOT_OWNER:
            path.chmod(_OWNER_ONLY)
    except OSError as error:
        raise StoreNotWritableError(
            f"cannot write {path} ({error.strerror}): run as the user who owns it and its folder"
        ) from error


BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another writer, such as `synsched pause`."""

_SIDE_FILES: Final = ("-journal", "-wal", "-shm")
"""What SQLite may have left beside the file after a crash."""

_JOB_IDS: Final = "SELECT value FROM json_each(?)"

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
        connection.text_factory = decode_text
        self.path = path
        self.unreadable_rows = UnreadableRows()
        self._database = sqlite_utils.Database(connection)

    @classmethod
    def open(cls, path: Path) -> Database:
        """The database at `path`, begun if it is not there; its folder must be. Raises StoreError.

        From here on its owner alone can read it.
        """
        for folder in dict.fromkeys((path.absolute().parent, path.resolve().parent)):
            check_private_folder(folder)
        ensure_private_file(path.resolve())
        for beside in _SIDE_FILES:
            if (other := path.resolve().with_name(path.resolve().name + beside)).exists():
                ensure_private_file(other)
        return cls._connect(str(path), path)

    @classmethod
    def in_memory(cls) -> Database:
        """One that is gone with the process, for simulated clusters."""
        return cls._connect(":memory:", Path(":memory:"))

    @classmethod
    def _connect(cls, target: str, path: Path) -> Database:
        with translate_sqlite_errors(path):
            connection = sqlite3.connect(target, timeout=BUSY_TIMEOUT, isolation_level=None)
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
        with translate_sqlite_errors(self.path):
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
        """Inside the block a query raises InterruptedStoreError once it is over; asked every `each` steps of SQLite's
        machine."""
        connection = self._database.conn
        connection.set_progress_handler(is_over, every_steps)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    def copy_to(self, copy: sqlite3.Connection) -> None:
        """Everything as of one moment; readers and writers go on."""
        with translate_sqlite_errors(self.path):
            self._database.conn.backup(copy)

    def rows(self, query: str, parameters: Parameters = ()) -> list[dict[str, Any]]:
        """What a query gives, one dict per row; SQLite types its values row by row, hence `Any`."""
        with translate_sqlite_errors(self.path):
            return list(self._database.query(query, parameters))

    def rows_of_jobs(self, query: str, jobs: Iterable[str], parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Those of these jobs alone: `{jobs}` in the query, before all parameters, stands for their numbers."""
        return self.rows(query.replace("{jobs}", _JOB_IDS), (json.dumps(list(jobs)), *parameters))

    def write(self, statement: str, parameters: Parameters = ()) -> int:
        """One change; the row id of what was inserted last."""
        with self.transaction(), translate_sqlite_errors(self.path):
            return self._database.conn.execute(statement, parameters).lastrowid or 0

    def write_for_jobs(self, statement: str, jobs: Iterable[str]) -> None:
        """One change to the rows of these jobs alone: `{jobs}` in the statement stands for their numbers."""
        self.write(statement.replace("{jobs}", _JOB_IDS), (json.dumps(list(jobs)),))

    def insert(self, table: str, row: dict[str, Any]) -> int:
        """A new row; its id."""
        columns, placeholders = ", ".join(row), ", ".join(f":{column}" for column in row)
        return self.write(f"INSERT INTO {table} ({columns}) VALUES ({placeholders})", row)  # noqa: S608 our own names

    def write_many(self, statement: str, rows: Iterable[Parameters]) -> None:
        """The same change for each row."""
        with self.transaction(), translate_sqlite_errors(self.path):
            self._database.conn.executemany(statement, rows)
