"""What can go wrong with the database, each told apart because each is mended differently."""

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
    """There is no space left for it."""


class BusyStoreError(StoreError):
    """Somebody else has been writing for longer than we wait."""


class InterruptedStoreError(StoreError):
    """It took longer than it was given."""


class StoreNotWritableError(StoreError):
    """It, or its folder, is not there for us to write."""


class CorruptStoreError(StoreError):
    """It is damaged, or it is not a database of ours."""


class NewerStoreError(StoreError):
    """A newer release wrote it."""


_MAX_LENGTH: Final = 200

_PRIMARY: Final = 0xFF
"""SQLite's extended result codes carry the primary one in their lowest byte."""


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """SQLite's errors inside the block leave it as StoreErrors that name the file and say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, path) from error
    except UnicodeDecodeError as error:  # SQLite quotes its own schema in a message, and that is damaged
        raise CorruptStoreError(_BROKEN[1].format(path=path, error="its schema is no text")) from error


def _translated(error: sqlite3.Error, path: Path) -> StoreError:
    code: int = getattr(error, "sqlite_errorcode", 0)  # not set where Python's own layer raises
    kind, sentence = _KINDS.get(code & _PRIMARY, (StoreError, "{path}: {error}"))
    return kind(sentence.format(path=path, error=printable_line(error)))


def printable_line(text: object) -> str:
    """At most two hundred letters that any terminal can show: SQLite quotes what a damaged file holds."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(text).split())[:_MAX_LENGTH])


_BUSY: Final = (BusyStoreError, "{path} is being written by another process: 'fuser {path}' names it")
_READ_ONLY: Final = (StoreNotWritableError, "cannot write {path}: run as the user who owns it and its folder")
_BROKEN: Final = (CorruptStoreError, "{path} is damaged or no database: move it away, a new one is begun ({error})")
_DISK: Final = (StoreError, "the disk under {path} failed or is full: look at it, then start again ({error})")
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
