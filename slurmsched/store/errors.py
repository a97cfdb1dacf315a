"""Errors of the database, one class per remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError


class StoreError(SynschedError):
    """The database cannot be used."""


class FullStoreError(StoreError):
    """No space is left on the disk."""


class BusyStoreError(StoreError):
    """Another process has held the lock for longer than we wait."""


class InterruptedStoreError(StoreError):
    """A query exceeded its time limit."""


class StoreNotWritableError(StoreError):
    """The database or its folder does not exist or is not writable."""


class CorruptStoreError(StoreError):
    """The file is damaged, or is not a database of synsched."""


class NewerStoreError(StoreError):
    """The schema is of a newer release."""


_MAX_LENGTH: Final = 200

_PRIMARY: Final = 0xFF
"""SQLite's extended result codes carry the primary one in their lowest byte."""


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors inside the block as StoreErrors that name the file and the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, path) from error
    except UnicodeDecodeError as error:  # a message quotes the schema, which is damaged
        raise CorruptStoreError(_BROKEN[1].format(path=path, error="its schema is not text")) from error


def _translated(error: sqlite3.Error, path: Path) -> StoreError:
    code: int = getattr(error, "sqlite_errorcode", 0)  # not set where Python's own layer raises
    kind, sentence = _KINDS.get(code & _PRIMARY, (StoreError, "{path}: {error}"))
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        kind, sentence = _MOVED
    return kind(sentence.format(path=path, error=printable_line(error)))


def printable_line(text: object) -> str:
    """At most 200 printable characters of `text` in one line: SQLite's messages quote the content of a damaged file."""
    line = " ".join(str(text).split())[:_MAX_LENGTH]
    return "".join(character if character.isprintable() else "?" for character in line)


_BUSY: Final = (BusyStoreError, "{path} is being written by another process: 'fuser {path}' names it")
_READ_ONLY: Final = (StoreNotWritableError, "cannot write {path}: run as the user who owns it and its folder")
_MOVED: Final = (
    StoreNotWritableError,
    "{path} was deleted or moved while it was in use: start again, and a missing one is created",
)
_BROKEN: Final = (
    CorruptStoreError,
    "{path} is damaged or not a database: move it away, a new one is created ({error})",
)
_DISK: Final = (StoreError, "the disk under {path} failed or is full: check it, then start again ({error})")
_KINDS: Final[dict[int, tuple[type[StoreError], str]]] = {
    sqlite3.SQLITE_FULL: (FullStoreError, "no space left for {path}: free some, then start again"),
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_INTERRUPT: (InterruptedStoreError, "{path} took too long"),
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_AUTH: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _READ_ONLY,
    sqlite3.SQLITE_NOTADB: _BROKEN,
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_IOERR: _DISK,
}
