"""Maintenance of the file: damage is looked for, the schema migrated from `sql/`, a backup made before that."""

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
    """The copies beside a database, the latest first."""
    found = [file for file in path.parent.glob(f"{path.name}{_BACKUP_MARK}*") if not file.name.endswith(_UNFINISHED)]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name), reverse=True)


def back_up(database: Database, migration: str) -> Path | None:
    """Copy the whole database beside itself, for its owner alone, and keep the last two; None of one in memory.

    Another process may read and write meanwhile: the copy is of one moment. It is whole or it is not there. Raises
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
    """One file: `name` such as `0001_first_light`, its statements."""

    name: str
    sql: str


def shipped_migrations() -> tuple[Migration, ...]:
    """All that this release knows, in order."""
    scripts = (file for file in package_data("sql").iterdir() if file.name.endswith(".sql"))
    return tuple(
        Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in sorted(scripts, key=lambda file: file.name)
    )


def pending_migrations(database: Database, known: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """Those still to be applied. Raises NewerStoreError, and BrokenStoreError for a database that is not ours."""
    known = shipped_migrations() if known is None else known
    tables = database.tables
    if tables and _MIGRATIONS_TABLE not in tables:
        raise CorruptStoreError(f"{database.path} is another program's database: set storage.path to another file")
    applied = _applied(database)
    beyond = applied - {migration.name for migration in known}
    if beyond:
        raise NewerStoreError(
            f"{database.path} was written by a newer synsched ({max(beyond)}): install that release again"
        )
    return tuple(migration for migration in known if migration.name not in applied)


def migrate(database: Database, at: float, known: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """Bring the schema up to date; `at` is recorded (unix seconds). What was applied. Raises StoreError.

    A database that holds something is copied first. All are applied or none: one that fails leaves it as it was.
    """
    wanted = pending_migrations(database, known)
    if not wanted:
        return ()
    if database.tables:
        back_up(database, wanted[0].name)
    with database.transaction():
        wanted = pending_migrations(database, known)  # another process may have been quicker
        for migration in wanted:
            _apply(database, migration, at)
    return wanted


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
    """The statements one by one: sqlite3's own `executescript` would commit what came before."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


CHECK_INTERVAL: Final = 86400.0
"""Seconds after which a process that ends after one round checks again."""

_CHECK_TIME_LIMIT: Final = 5.0
"""Seconds. SQLite goes through about 500 MB in two; on a slower disk `synsched doctor` does the rest."""

_UPKEEP: Final = "upkeep"

_PROGRESS_STEPS: Final = 10_000
"""Steps of SQLite's machine between two looks at the time: about a millisecond."""


def check_integrity(database: Database, at: float, interval: float = CHECK_INTERVAL) -> bool:
    """Check the file unless that was done less than `every` seconds before `at`; whether it was gone through whole.

    Ends after five seconds. A new database has nothing to check. Raises BrokenStoreError with the first damage found,
    StoreError.
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
        raise CorruptStoreError(f"{database.path} is damaged: move it away, a new one is begun ({damage})")
    if _UPKEEP in tables:
        database.write("INSERT OR REPLACE INTO upkeep (name, at) VALUES ('checked', ?)", (at,))
    return damage is not None


def find_damage(database: Database, deadline: float) -> str | None:
    """The first damage in one line, empty where there is none, None where it was still looked for at `end` (monotonic).

    A value that does not belong where it is costs its row alone, and is no damage of the file. Raises StoreError.
    """
    with database.interruptible(lambda: monotonic() >= deadline, _PROGRESS_STEPS):
        try:
            found = [" ".join(str(row["quick_check"]).split()) for row in database.rows("PRAGMA quick_check(100)")]
        except InterruptedStoreError:
            return None
    return next((said for said in found if said != "ok" and not _SINGLE_VALUE_DAMAGE.search(said)), "")


_SINGLE_VALUE_DAMAGE: Final = re.compile(r"\b(?:NULL|NUMERIC|TEXT) value in |\bnon-\w+ value in ")
