"""Two daemons at once."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurmsched.daemon.heartbeat import ProcessIdentity
from slurmsched.daemon.lock import AlreadyRunningError, LockError, exclusive_lock, lock_holder

HOLDER = """
import sys
from pathlib import Path
from slurmsched.daemon.lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_told_the_process_number_of_the_first(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / "db"),
        pytest.raises(AlreadyRunningError, match=f"process {os.getpid()} already") as told,
    ):
        exclusive_lock(tmp_path / "db").__enter__()
    assert told.value.pid == os.getpid()


def test_the_lock_goes_with_its_process_however_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(AlreadyRunningError, match=f"process {process.pid}"):
            exclusive_lock(tmp_path / "db").__enter__()
        process.kill()
    with exclusive_lock(tmp_path / "db"):
        assert lock_holder(tmp_path / "db") == ProcessIdentity.current()


def test_nobody_else_can_open_the_lock_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with exclusive_lock(tmp_path / "db"):
            assert stat.S_IMODE((tmp_path / "db.lock").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_who_took_an_open_lock_before_it_was_private_does_not_keep_it(tmp_path: Path) -> None:
    """A reader's descriptor is enough for flock, and it outlives any change of the mode."""
    lock = tmp_path / "db.lock"
    lock.write_text("999999999\n")
    lock.chmod(0o644)
    stranger = os.open(lock, os.O_RDONLY)
    fcntl.flock(stranger, fcntl.LOCK_EX)
    with exclusive_lock(tmp_path / "db"):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}"):
            exclusive_lock(tmp_path / "db").__enter__()
    os.close(stranger)
    assert [file.name for file in tmp_path.iterdir()] == ["db.lock"]


def test_a_daemon_of_an_older_release_that_still_runs_keeps_its_open_lock(tmp_path: Path) -> None:
    lock = tmp_path / "db.lock"
    lock.write_text(f"{os.getpid()}\n")
    lock.chmod(0o644)
    older = os.open(lock, os.O_RDWR)
    fcntl.flock(older, fcntl.LOCK_EX)
    with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()} already"):
        exclusive_lock(tmp_path / "db").__enter__()
    os.close(older)


def test_a_process_that_has_ended_is_never_named(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "db"):
        (tmp_path / "db.lock").write_text("999999999\n")
        with pytest.raises(AlreadyRunningError, match="another process already") as told:
            exclusive_lock(tmp_path / "db").__enter__()
    assert told.value.pid is None


def test_a_process_number_that_is_used_again_is_not_the_old_process() -> None:
    own = ProcessIdentity.current()
    assert own.may_be_alive
    assert not ProcessIdentity(own.pid, own.host, own.boot, own.started + 1).may_be_alive
    assert not ProcessIdentity(own.pid, own.host, "0-another-boot", own.started).may_be_alive
    assert ProcessIdentity(own.pid, "elsewhere", own.boot, own.started + 1).may_be_alive


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "db.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(LockError, match="cannot open"):
        exclusive_lock(tmp_path / "db").__enter__()
    assert (tmp_path / "precious").read_text() == "mine"


def test_another_database_has_a_lock_of_its_own(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "db"), exclusive_lock(tmp_path / "other"):
        assert {file.name for file in tmp_path.iterdir()} == {"db.lock", "other.lock"}


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"cannot open .*/nowhere/db\.lock: No such file"):
        exclusive_lock(tmp_path / "nowhere" / "db").__enter__()
