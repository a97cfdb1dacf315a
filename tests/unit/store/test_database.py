"""The SQLite file: what is promised about it, and what is said when it cannot be used."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurmsched.store.database import Database
from slurmsched.store.errors import (
    BusyStoreError,
    CorruptStoreError,
    FullStoreError,
    StoreError,
    StoreNotWritableError,
)
from slurmsched.store.maintenance import migrate


def pause(database: Database, why: str) -> None:
    database.insert("switches", {"name": "paused", "value": why, "set_by": "root", "at": 1.0})


def test_a_database_that_is_deleted_under_its_user_is_told_as_such(path: Path) -> None:
    database = Database.open(path)
    migrate(database, at=1.0)
    path.unlink()
    with pytest.raises(StoreNotWritableError, match="was deleted or moved while it was in use: start again"):
        pause(database, "new drives")
    database.close()


def pause_and_fail(database: Database) -> None:
    pause(database, "once")
    database.write("INSERT INTO nonsense VALUES (1)")


def inner_transaction_then_failure(database: Database) -> None:
    with database.transaction():
        pause(database, "inner")
    database.write("INSERT INTO nonsense VALUES (1)")


def write_many_events(database: Database) -> None:
    with database.transaction():
        for number in range(1000):
            database.insert("events", {"at": number, "job": "1", "kind": "seen", "sentence": "x" * 500})


def test_it_uses_the_rollback_journal_and_full_synchronisation(database: Database) -> None:
    assert database.rows("PRAGMA journal_mode") == [{"journal_mode": "delete"}]
    assert database.rows("PRAGMA synchronous") == [{"synchronous": 2}]


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    with pytest.raises(StoreError), database.transaction():
        pause_and_fail(database)
    assert database.rows("SELECT * FROM switches") == []


def test_a_transaction_within_another_belongs_to_the_outer_one(database: Database) -> None:
    with pytest.raises(StoreError), database.transaction():
        inner_transaction_then_failure(database)
    assert database.rows("SELECT * FROM switches") == []


def test_somebody_else_can_read_what_is_committed_while_it_is_open(database: Database, path: Path) -> None:
    pause(database, "maintenance")
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert reader.execute("SELECT value FROM switches").fetchall() == [("maintenance",)]
    reader.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        StoreNotWritableError, match=r"folder .*/nowhere does not exist: create it, or set storage\.path"
    ):
        Database.open(tmp_path / "nowhere" / "synsched.db")


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "synsched.db").mkdir()
    with pytest.raises(StoreNotWritableError, match=r"it is not a regular file; set storage\.path"):
        Database.open(tmp_path / "synsched.db")


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_text("this is somebody's shopping list, and quite a long one at that\n" * 40)
    with pytest.raises(CorruptStoreError, match="is damaged or not a database: move it away"):
        Database.open(path)


def test_a_damaged_page_is_told_from_other_errors(database: Database, path: Path) -> None:
    for number in range(200):
        database.insert("events", {"at": number, "job": "1", "kind": "seen", "sentence": "x" * 100})
    database.close()
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for start in range(page, len(content), page):
        content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="is damaged"):
        Database.open(path).rows("SELECT * FROM events ORDER BY sentence")


def test_a_full_disk_is_told_from_other_errors_and_leaves_what_was_there(database: Database) -> None:
    pause(database, "before")
    (pages,) = database.rows("PRAGMA page_count")
    database.rows(f"PRAGMA max_page_count = {pages['page_count']}")
    with pytest.raises(FullStoreError, match=r"^no space left for .*synsched\.db: free some"):
        write_many_events(database)
    assert database.rows("SELECT value FROM switches") == [{"value": "before"}]
    assert database.rows("SELECT * FROM events") == []


def test_a_second_writer_waits_and_then_says_who_to_look_for(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmsched.store.database.BUSY_TIMEOUT", 0.01)
    second = Database.open(path)
    with database.transaction(), pytest.raises(BusyStoreError, match=r"another process: 'fuser .*' names it"):
        pause(second, "me too")
    second.close()


def test_a_database_that_may_only_be_read_is_told_from_other_errors(database: Database) -> None:
    database._database.conn.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreNotWritableError, match="cannot write"):
        pause(database, "no")


def test_every_other_error_of_sqlite_is_a_store_error_too(database: Database) -> None:
    with pytest.raises(StoreError, match="no such table: nonsense"):
        database.rows("SELECT * FROM nonsense")
