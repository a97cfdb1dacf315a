"""One daemon per database: a lock that the kernel drops with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurmsched.model import SynschedError

__all__ = ["AlreadyRunningError", "LockError", "sole"]


class LockError(SynschedError):
    """The lock file cannot be used."""


class AlreadyRunningError(LockError):
    """Another process schedules with this database; `pid` is None where it did not say."""

    def __init__(self, database: Path, pid: int | None) -> None:
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{who} already schedules with {database}: stop it first, or set another storage.path")
        self.pid = pid


@contextmanager
def sole(database: Path) -> Iterator[None]:
    """Inside the block nobody else schedules with this database. Raises AlreadyRunningError, LockError."""
    path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LockError(
            f"cannot open {path}: {error.strerror}; create its folder, or run as the user who owns it"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError(database, _owner(descriptor)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _owner(descriptor: int) -> int | None:
    with suppress(ValueError):
        return int(os.pread(descriptor, 20, 0))
    return None
