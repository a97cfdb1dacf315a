"""Maintenance of the database: integrity checks, schema migrations from `sql/`, and backups before these."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from slurmsched.package_data import package_data
from slurmsched.store.database import Database, ensure_private_file
from slurmsched.store.errors import (
    CorruptStoreError,
    InterruptedStoreError,
    NewerStoreError,
    StoreError,
    translate_sqlite_errors,
)
from slurmsched.store.rows import number

_BACKUPS_KEPT: Final = 2
_BACKUP_MARK: Final = ".before-"


def backups(path: Path) -> Sequence[Path]:
    """The backups beside the database at `path`, newest first."""
    copies = [file for file in path.parent.glob(f"{path.name}{_BACKUP_MARK}*") if not file.name.endswith(_UNFINISHED)]
    return sorted(copies, key=lambda file: (file.stat().st_mtime_ns, file.name), reverse=True)


def back_up(database: Database, migration: str) -> Path | None:
    """Copy the database beside itself, readable by its owner only, and keep the last two copies; returns the path, None
    for a database in memory.

    The copy is a consistent snapshot, complete or absent; other processes may read and write meanwhile. Raises
    StoreError.
    """
    if database.path == Path(":memory:"):
        return None
    path = database.path.resolve()
    backup = path.with_name(f"{path.name}{_BACKUP_MARK}{migration}")
    unfinished = backup.with_name(backup.name + _UNFINISHED)
    try:
        unfinished.unlink(missing_ok=True)
        ensure_private_file(unfinished)
        with translate_sqlite_errors(unfinished), closing(sqlite3.connect(unfinished)) as copy:
            database.copy_to(copy)
        unfinished.replace(backup)
        for old in backups(path)[_BACKUPS_KEPT:]:
            old.unlink()
    except OSError as error:
        raise StoreError(f"cannot copy {path} before its schema is changed: {error.strerror}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return backup


_UNFINISHED: Final = ".unfinished"


_MIGRATIONS_TABLE = "migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL script; `name` such as `0001_first_light`."""

    name: str
    sql: str


def shipped_migrations() -> tuple[Migration, ...]:
    """All migrations of this release, in order."""
    scripts = (file for file in package_data("sql").iterdir() if file.name.endswith(".sql"))
    return tuple(
        Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in sorted(scripts, key=lambda file: file.name)
    )


def pending_migrations(database: Database, known: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """The migrations not yet applied. Raises NewerStoreError, and CorruptStoreError for another program's database."""
    known = shipped_migrations() if known is None else known
    tables = database.tables
    if tables and _MIGRATIONS_TABLE not in tables:
        raise CorruptStoreError(f"{database.path} is another program's database: set storage.path to another file")
    applied = _applied(database)
    unknown = applied - {migration.name for migration in known}
    if unknown:
        raise NewerStoreError(
            f"{database.path} was written by a newer synsched ({max(unknown)}): install that release again"
        )
    return tuple(migration for migration in known if migration.name not in applied)


def migrate(database: Database, at: float, known: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """Apply the pending migrations, recorded as of `at` (unix seconds); returns them. Raises StoreError.

    A database that has tables is backed up first. All migrations are applied or none.
    """
    pending = pending_migrations(database, known)
    if not pending:
        return ()
    if database.tables:
        back_up(database, pending[0].name)
    with database.transaction():
        pending = pending_migrations(database, known)  # another process may have been quicker
        for migration in pending:
            _apply(database, migration, at)
    return pending


def _apply(database: Database, migration: Migration, at: float) -> None:
    database.write("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied REAL NOT NULL)")
    for statement in _statements(migration.sql):
        database.write(statement)
    database.insert("migrations", {"name": migration.name, "applied": at})


def _applied(database: Database) -> frozenset[str]:
    if _MIGRATIONS_TABLE not in database.tables:
        return frozenset()
    return frozenset(str(row["name"]) for row in database.rows("SELECT name FROM migrations"))


def _statements(script: str) -> Iterator[str]:
    """The statements one by one: sqlite3's `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


CHECK_INTERVAL: Final = 86400.0
"""Seconds between two checks of the file by processes that run a single round."""

_CHECK_TIME_LIMIT: Final = 5.0
"""Seconds. SQLite checks about 500 MB in two; `synsched doctor` has no limit."""

_UPKEEP: Final = "upkeep"

_PROGRESS_STEPS: Final = 10_000
"""Instructions of SQLite's virtual machine between two looks at the clock: about a millisecond."""


def check_integrity(database: Database, at: float, interval: float = CHECK_INTERVAL) -> bool:
    """Check the file for at most five seconds, unless it was checked less than `interval` seconds before `at`.

    Returns false if time ran out. Raises CorruptStoreError with the first damage, StoreError.
    """
    tables = database.tables
    if not tables:
        return True
    if _UPKEEP in tables:
        rows = database.rows("SELECT name, at FROM upkeep WHERE name = 'checked'")
        checked = database.unreadable_rows.parse_each(_UPKEEP, "name", lambda row: number(row, "at"), rows)
        if checked and abs(at - checked[0]) < interval:
            return True
    damage = find_damage(database, monotonic() + _CHECK_TIME_LIMIT)
    if damage:
        raise CorruptStoreError(f"{database.path} is damaged: move it away, a new one is created ({damage})")
    if _UPKEEP in tables:
        database.write("INSERT OR REPLACE INTO upkeep (name, at) VALUES ('checked', ?)", (at,))
    return damage is not None


def find_damage(database: Database, deadline: float) -> str | None:
    """The first damage in one line, empty if there is none, None if `deadline` (monotonic seconds) passed before.

    A value of the wrong type is not damage of the file: only its row is unreadable. Raises StoreError.
    """
    with database.interruptible(lambda: monotonic() >= deadline, _PROGRESS_STEPS):
        try:
            lines = [" ".join(str(row["quick_check"]).split()) for row in database.rows("PRAGMA quick_check(100)")]
        except InterruptedStoreError:
            return None
    return next((line for line in lines if line != "ok" and not _SINGLE_VALUE_DAMAGE.search(line)), "")


_SINGLE_VALUE_DAMAGE: Final = re.compile(r"\b(?:NULL|NUMERIC|TEXT) value in |\bnon-\w+ value in ")
