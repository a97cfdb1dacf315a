"""Two daemons at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmsched.daemon.locking import AlreadyRunningError, LockError, sole

HOLDER = """
import sys
from pathlib import Path
from slurmsched.daemon.locking import sole
with sole(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_told_the_process_number_of_the_first(tmp_path: Path) -> None:
    with sole(tmp_path / "db"), pytest.raises(AlreadyRunningError, match=f"process {os.getpid()} already") as told:
        sole(tmp_path / "db").__enter__()
    assert told.value.pid == os.getpid()


def test_the_lock_goes_with_its_process_however_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(AlreadyRunningError, match=f"process {holder.pid}"):
            sole(tmp_path / "db").__enter__()
        holder.kill()
    with sole(tmp_path / "db"):
        assert (tmp_path / "db.lock").read_text() == f"{os.getpid()}\n"


def test_another_database_has_a_lock_of_its_own(tmp_path: Path) -> None:
    with sole(tmp_path / "db"), sole(tmp_path / "other"):
        assert {file.name for file in tmp_path.iterdir()} == {"db.lock", "other.lock"}


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"cannot open .*/nowhere/db\.lock: No such file"):
        sole(tmp_path / "nowhere" / "db").__enter__()
