"""What a change of the schema leaves to go back to."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from slurmsched.store.database import Database
from slurmsched.store.errors import FullStoreError, StoreError
from slurmsched.store.maintenance import Migration, backups, migrate

STEPS = tuple(Migration(f"000{n}_step", f"CREATE TABLE t{n} (x TEXT);") for n in range(6))
BROKEN = Migration("0009_broken", "CREATE TABLE t9 (x TEXT);\nINSERT INTO nowhere VALUES (1);")


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_new_database_has_nothing_to_copy(path: Path) -> None:
    migrate(Database.open(path), 1.0, STEPS)
    assert backups(path) == []


def test_what_was_there_is_copied_for_its_owner_alone_before_it_is_changed(path: Path) -> None:
    before = os.umask(0)
    try:
        migrate(Database.open(path), 1.0, STEPS[:2])
        migrate(Database.open(path), 2.0, STEPS[:4])
    finally:
        os.umask(before)
    (copy,) = backups(path)
    assert copy.name == "synsched.db.before-0002_step"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert tables(copy) == {"migrations", "t0", "t1"}
    assert tables(path) == {"migrations", "t0", "t1", "t2", "t3"}


def test_the_last_two_copies_are_kept(path: Path) -> None:
    for upto in range(1, 6):
        migrate(Database.open(path), 1.0, STEPS[:upto])
    assert [copy.name for copy in backups(path)] == ["synsched.db.before-0004_step", "synsched.db.before-0003_step"]


def test_where_one_of_several_changes_fails_the_database_is_as_it_was(path: Path) -> None:
    migrate(Database.open(path), 1.0, STEPS[:1])
    with pytest.raises(StoreError, match="no such table: nowhere"):
        migrate(Database.open(path), 2.0, (*STEPS[:2], BROKEN))
    assert tables(path) == {"migrations", "t0"}
    (copy,) = backups(path)
    assert tables(copy) == {"migrations", "t0"}


def test_without_space_for_a_copy_nothing_is_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database.open(path)
    migrate(database, 1.0, STEPS[:1])

    def full(_: Database, copy: sqlite3.Connection) -> None:
        copy.execute("PRAGMA max_page_count = 1")
        copy.execute("CREATE TABLE big (x)")

    monkeypatch.setattr(Database, "copy_to", full)
    with pytest.raises(FullStoreError, match="no space left"):
        migrate(database, 2.0, STEPS[:2])
    assert tables(path) == {"migrations", "t0"}
    assert sorted(file.name for file in path.parent.iterdir()) == ["synsched.db"]
