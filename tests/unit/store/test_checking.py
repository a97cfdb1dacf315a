"""A damaged file is told of at the start, not by some later round."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from slurmsched.store.database import Database
from slurmsched.store.errors import CorruptStoreError
from slurmsched.store.maintenance import check_integrity, find_damage
from slurmsched.store.store import Store


def damaged(path: Path) -> None:
    """Pages in which only history lies: nothing that opening reads."""
    with_history(path)
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    last = len(content) // page - 3
    content[last * page : last * page + 100] = b"\xff" * 100
    path.write_bytes(content)


def with_history(path: Path) -> None:
    store = Store.open(path, 1.0)
    rows = [(number, "x" * 500) for number in range(500)]
    store.database.write_many("INSERT INTO events (at, job, kind, sentence) VALUES (?, '1', 'seen', ?)", rows)
    store.close()


def test_a_daemon_does_not_start_on_a_damaged_file(path: Path) -> None:
    damaged(path)
    said = r"synsched\.db is damaged.*: move it away, a new one is created \(.+\)"
    with pytest.raises(CorruptStoreError, match=said) as told:
        Store.open(path, 2.0, check_interval=0.0)
    assert "\n" not in str(told.value)


def test_a_process_for_one_round_checks_once_a_day(path: Path) -> None:
    Store.open(path, 1.0).close()
    Store.open(path, 100.0).close()
    damaged(path)
    Store.open(path, 3600.0).close()
    with pytest.raises(CorruptStoreError):
        Store.open(path, 100_000.0)


def test_a_check_ends_when_its_time_is_up(path: Path) -> None:
    with_history(path)
    database = Database.open(path)
    database.write_many("INSERT INTO events (at, job, kind, sentence) VALUES (?, '1', 'seen', '')",
                        [(number,) for number in range(50_000)])  # fmt: skip
    assert find_damage(database, monotonic() - 1) is None
    assert find_damage(database, monotonic() + 60) == ""
    assert database.rows("SELECT count(*) AS rows FROM events") == [{"rows": 50_500}]


def test_an_odd_value_in_a_row_does_not_keep_a_daemon_from_starting(path: Path) -> None:
    store = Store.open(path, 1.0)
    store.database.insert("events", {"at": "soon", "job": b"\xff", "kind": 7, "sentence": b"\xff\xfe"})
    assert check_integrity(store.database, 2.0, 0.0)
    store.close()
