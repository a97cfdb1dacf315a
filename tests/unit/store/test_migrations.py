"""Schema changes: once each, whole or not at all, and never on somebody else's file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurmsched.store.database import Database
from slurmsched.store.errors import CorruptStoreError, NewerStoreError, StoreError
from slurmsched.store.maintenance import Migration, migrate, pending_migrations, shipped_migrations

FIRST = Migration("0001_first", "-- a; b\nCREATE TABLE one (x TEXT);\nINSERT INTO one VALUES ('a;\nb');\n-- end\n")
SECOND = Migration("0002_second", "CREATE TABLE two (y TEXT);")
BROKEN = Migration("0003_broken", "CREATE TABLE three (z TEXT);\nCREATE TABLE one (x TEXT);")


def test_the_shipped_ones_are_numbered_from_one_without_a_gap() -> None:
    numbers = [int(migration.name.partition("_")[0]) for migration in shipped_migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_new_database_gets_all_of_them_in_order(path: Path) -> None:
    database = Database.open(path)
    assert pending_migrations(database, (FIRST, SECOND)) == (FIRST, SECOND)
    assert migrate(database, 5.0, (FIRST, SECOND)) == (FIRST, SECOND)
    assert database.rows("SELECT * FROM migrations") == [
        {"name": "0001_first", "applied": 5.0},
        {"name": "0002_second", "applied": 5.0},
    ]
    assert database.rows("SELECT x FROM one") == [{"x": "a;\nb"}]


def test_an_older_database_gets_what_it_lacks_and_keeps_what_it_has(path: Path) -> None:
    database = Database.open(path)
    migrate(database, 5.0, (FIRST,))
    assert migrate(database, 6.0, (FIRST, SECOND)) == (SECOND,)
    assert migrate(database, 7.0, (FIRST, SECOND)) == ()
    assert database.rows("SELECT x FROM one") == [{"x": "a;\nb"}]


def test_one_that_fails_leaves_neither_tables_nor_a_record(path: Path) -> None:
    database = Database.open(path)
    migrate(database, 5.0, (FIRST, SECOND))
    with pytest.raises(StoreError, match="one already exists"):
        migrate(database, 6.0, (FIRST, SECOND, BROKEN))
    assert "three" not in database.tables
    assert pending_migrations(database, (FIRST, SECOND, BROKEN)) == (BROKEN,)


def test_a_newer_database_is_refused_and_not_touched(path: Path) -> None:
    database = Database.open(path)
    migrate(database, 5.0, (FIRST, SECOND))
    with pytest.raises(NewerStoreError, match=r"newer synsched \(0002_second\): install that release again"):
        migrate(database, 6.0, (FIRST,))


def test_another_programs_database_is_refused_and_not_touched(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    database = Database.open(path)
    with pytest.raises(CorruptStoreError, match=r"another program's database: set storage\.path"):
        migrate(database, 5.0)
    assert database.tables == {"bookmarks"}


def test_requests_that_no_cluster_could_meet_are_dropped_with_jobs_that_have_ended(path: Path) -> None:
    before = tuple(migration for migration in shipped_migrations() if migration.name < "0004")
    database = Database.open(path)
    migrate(database, 1.0, before)
    for name, original, state, held in (
        ("1", '{"gpus": 999999999, "gpus_per_node": 1}', "finished", 0),
        ("2", '{"gpus": 4, "memory": 999999999999999999}', "finished", 0),
        ("3", "no JSON", "finished", 0),
        ("4", '{"gpus": 8, "nodes": 2, "cpus": 96, "memory": 2000000, "gpus_per_node": null}', "finished", 0),
        ("5", '{"gpus": 999999999}', "finished", 1),
        ("6", '{"gpus": 999999999}', "running", 0),
    ):
        database.write(
            "INSERT INTO jobs (id, owner, first_seen, last_seen, state, original, held_by_us)"
            " VALUES (?, 'alice', 1, 1, ?, ?, ?)",
            (name, state, original, held),
        )
    migrate(database, 2.0)
    assert [row["id"] for row in database.rows("SELECT id FROM jobs ORDER BY id")] == ["4", "5", "6"]
