"""Numbered schema changes from `sql/`, each applied once, those of one release in one transaction with their record."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from slurmsched.shipped import shipped
from slurmsched.store.copies import copy_before
from slurmsched.store.database import Database
from slurmsched.store.errors import BrokenStoreError, NewerStoreError

__all__ = ["Migration", "migrate", "pending", "shipped_migrations"]

_RECORD = "migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: `name` such as `0001_first_light`, its statements."""

    name: str
    sql: str


def shipped_migrations() -> tuple[Migration, ...]:
    """All that this release knows, in order."""
    scripts = (file for file in shipped("sql").iterdir() if file.name.endswith(".sql"))
    return tuple(
        Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in sorted(scripts, key=lambda file: file.name)
    )


def pending(database: Database, known: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """Those still to be applied. Raises NewerStoreError, and BrokenStoreError for a database that is not ours."""
    known = shipped_migrations() if known is None else known
    tables = database.tables
    if tables and _RECORD not in tables:
        raise BrokenStoreError(f"{database.path} is another program's database: set storage.path to another file")
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
    wanted = pending(database, known)
    if not wanted:
        return ()
    if database.tables:
        copy_before(database, wanted[0].name)
    with database.transaction():
        wanted = pending(database, known)  # another process may have been quicker
        for migration in wanted:
            _apply(database, migration, at)
    return wanted


def _apply(database: Database, migration: Migration, at: float) -> None:
    database.write("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied REAL NOT NULL)")
    for statement in _statements(migration.sql):
        database.write(statement)
    database.insert("migrations", {"name": migration.name, "applied": at})


def _applied(database: Database) -> frozenset[str]:
    if _RECORD not in database.tables:
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
