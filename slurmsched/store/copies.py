"""Copies of the database, made before its schema is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from slurmsched.store.database import Database
from slurmsched.store.errors import StoreError, told_apart
from slurmsched.store.privacy import private_file

__all__ = ["copies", "copy_before"]

_KEPT: Final = 2
_MARK: Final = ".before-"


def copies(path: Path) -> Sequence[Path]:
    """The copies beside a database, the latest first."""
    found = [file for file in path.parent.glob(f"{path.name}{_MARK}*") if not file.name.endswith(_UNFINISHED)]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name), reverse=True)


def copy_before(database: Database, migration: str) -> Path | None:
    """Copy the whole database beside itself, for its owner alone, and keep the last two; None of one in memory.

    Another process may read and write meanwhile: the copy is of one moment. It is whole or it is not there. Raises
    StoreError.
    """
    if database.path == Path(":memory:"):
        return None
    path = database.path.resolve()
    made = path.with_name(f"{path.name}{_MARK}{migration}")
    unfinished = made.with_name(made.name + _UNFINISHED)
    try:
        unfinished.unlink(missing_ok=True)
        private_file(unfinished)
        with told_apart(unfinished), closing(sqlite3.connect(unfinished)) as copy:
            database.copy_to(copy)
        unfinished.replace(made)
        for old in copies(path)[_KEPT:]:
            old.unlink()
    except OSError as error:
        raise StoreError(f"cannot copy {path} before its schema is changed: {error.strerror}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return made


_UNFINISHED: Final = ".unfinished"
