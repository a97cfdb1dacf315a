"""Users of the machine, as tests of what one user can do to another need them."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

__all__ = ["ALICE", "BOB", "CAROL", "DAEMON", "as_user", "needs_users", "open_folder", "start_as_user"]

ALICE: Final = 64001
BOB: Final = 64002
CAROL: Final = 64003
DAEMON: Final = 64010

needs_users = pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT TESTED: what one user can do to another; only root can be several users"
)


def start_as_user(uid: int, work: Callable[[], object], *, groups: tuple[int, ...] = (), umask: int = 0o022) -> int:
    """Do it in a child with this user's rights, in a group of his own; its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.umask(umask)
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        work()
        status = 0
    except BaseException:  # the child of a test may not go on as a second pytest
        traceback.print_exc()
    finally:
        os._exit(status)


def as_user(uid: int, work: Callable[[], object], *, groups: tuple[int, ...] = (), umask: int = 0o022) -> None:
    """The same, and wait until it is done."""
    _, status = os.waitpid(start_as_user(uid, work, groups=groups, umask=umask), 0)
    assert status == 0, "see the traceback on standard error"


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="synsched-users-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)
