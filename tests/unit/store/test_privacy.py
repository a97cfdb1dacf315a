"""Who else may read or write our files: nobody."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmsched.store.database import Database
from slurmsched.store.errors import StoreError, StoreNotWritableError
from slurmsched.store.store import Store


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=["umask 000", "umask 022", "umask 277"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_the_database_and_its_journal_are_their_owners_alone(path: Path) -> None:
    store = Store.open(path, 1.0)
    assert mode(path) == 0o600
    with store.database.transaction():
        store.switches.pause("root", "", 1.0)
        assert mode(path.with_name(path.name + "-journal")) == 0o600
    store.close()
    assert mode(path) == 0o600


@pytest.mark.parametrize("before", [0o644, 0o640, 0o666, 0o604])
def test_a_database_that_others_may_read_is_closed_to_them(path: Path, before: int) -> None:
    Store.open(path, 1.0).close()
    path.chmod(before)
    Store.open(path, 2.0).close()
    assert mode(path) == 0o600


def test_a_journal_that_a_killed_process_left_to_read_is_closed_too(path: Path) -> None:
    Store.open(path, 1.0).close()
    left = path.with_name(path.name + "-journal")
    left.write_bytes(b"")
    left.chmod(0o644)
    Store.open(path, 2.0).close()
    assert not left.exists() or mode(left) == 0o600


@pytest.mark.parametrize("others", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused_with_what_to_do(tmp_path: Path, others: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(others)
    with pytest.raises(
        StoreError, match=rf"others may write into {folder}: 'chmod go-w {folder}', or set storage\.path"
    ):
        Store.open(folder / "synsched.db", 1.0)
    assert not list(folder.iterdir())


def test_a_link_into_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (tmp_path / "synsched.db").symlink_to(folder / "planted.db")
    with pytest.raises(StoreError, match="others may write into"):
        Database.open(tmp_path / "synsched.db")


def test_a_link_to_a_private_folder_is_followed(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir(0o700)
    (tmp_path / "synsched.db").symlink_to(big / "synsched.db")
    Store.open(tmp_path / "synsched.db", 1.0).close()
    assert mode(big / "synsched.db") == 0o600


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(StoreNotWritableError, match="not a regular file"):
        Database.open(path)


def test_making_a_database_private_keeps_the_locks_that_we_have_on_it(path: Path) -> None:
    first = Store.open(path, 1.0)
    with first.database.transaction():
        path.chmod(0o644)
        reader = os.fork()
        if not reader:  # another process: locks are per process
            _exit_with(path)
        with pytest.raises(StoreError):
            _write_beside(path)
        assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 7
    first.close()


def _write_beside(path: Path) -> None:
    second = Database.open(path)
    second._database.conn.execute("PRAGMA busy_timeout = 1")
    try:
        second.write("INSERT INTO switches (name, value, set_by, at) VALUES ('x', '', '', 0)")
    finally:
        second.close()


def _exit_with(path: Path) -> None:
    try:
        _write_beside(path)
    except StoreError:
        os._exit(7)
    os._exit(0)
