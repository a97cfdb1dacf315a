"""One daemon per database: a lock that the kernel drops with the process, however it ends.

`flock` needs no right to write, so whoever could open the file could take the lock. The file is therefore ours alone
(mode 0600, no link, our owner). One that others could open until now is not made private but replaced: who opened it
while it was open to all could hold its lock for ever.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.daemon.heartbeat import ProcessIdentity
from slurmsched.model import SynschedError

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_LENGTH: Final = 400
_TRIES: Final = 5


class LockError(SynschedError):
    """The lock file cannot be used."""


class AlreadyRunningError(LockError):
    """Another process schedules with this database; `owner` is None where it cannot be named with certainty."""

    def __init__(self, database: Path, owner: ProcessIdentity | None) -> None:
        who = "another process" if owner is None else owner.sentence
        super().__init__(f"{who} already schedules with {database}: stop it first, or set another storage.path")
        self.owner = owner

    @property
    def pid(self) -> int | None:
        return self.owner.pid if self.owner else None


@contextmanager
def exclusive_lock(database: Path) -> Iterator[None]:
    """Inside the block nobody else schedules with this database. Raises AlreadyRunningError, LockError."""
    path = _lock_path(database)
    try:
        descriptor = _open_locked(path)
    except BlockingIOError:
        raise AlreadyRunningError(database, lock_holder(database)) from None
    except OSError as error:
        raise LockError(
            f"cannot open {path}: {error.strerror}; create its folder, or run as the user who owns it"
        ) from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{ProcessIdentity.current().text}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(database: Path) -> ProcessIdentity | None:
    """Who said last that it holds the lock; None where that process has ended, or nobody may be named."""
    with suppress(OSError):
        descriptor = os.open(_lock_path(database), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            holder = _read_holder(descriptor)
        finally:
            os.close(descriptor)
        return holder if holder is not None and holder.may_be_alive else None
    return None


@dataclass(frozen=True, slots=True)
class SkipCounter:
    """How many rounds in a row found the lock taken, counted in a file beside it. Nothing here raises OSError."""

    path: Path

    @classmethod
    def beside(cls, database: Path) -> SkipCounter:
        return cls(database.with_name(database.name + ".skipped"))

    def increment(self) -> int:
        """The count with this one; 1 where it cannot be kept."""
        with suppress(OSError):
            descriptor = os.open(self.path, _FLAGS, 0o600)
            try:
                so_far = os.pread(descriptor, 9, 0).strip()
                count = 1 + (int(so_far) if so_far.isdigit() else 0)
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(count).encode(), 0)
            finally:
                os.close(descriptor)
            return count
        return 1

    def reset(self) -> None:
        """A round was run."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


def _open_locked(path: Path) -> int:
    """The descriptor of the lock file, private and locked. Raises BlockingIOError where it is taken, OSError."""
    for _ in range(_TRIES):
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            private = _is_private(descriptor, path)
            if private or _holder_may_be_alive(descriptor):  # an older release may still run, with a file open to all
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not private:
                locked = _replace_locked(path)
                os.close(descriptor)
                return locked
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise BlockingIOError(f"{path} is being replaced by others")


def _replace_locked(path: Path) -> int:
    """A private lock file in the place of one that others could open, locked before it stands there.

    Of two processes that replace it at once the second finds the new file, under either name, locked.
    """
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, _FLAGS, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(descriptor, fresh) or stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0:
            raise BlockingIOError(f"{path} was replaced by another process")
        os.fchmod(descriptor, 0o600)
        fresh.replace(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_private(descriptor: int, path: Path) -> bool:
    """Whether nobody else can open the file. Raises LockError where it is none of ours."""
    seen = os.fstat(descriptor)
    owners = {0, os.geteuid(), path.parent.stat().st_uid}
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid not in owners:
        raise LockError(f"{path} is not a file of ours: remove it, or run as the user who owns it")
    return stat.S_IMODE(seen.st_mode) & 0o077 == 0


def _read_holder(descriptor: int) -> ProcessIdentity | None:
    return ProcessIdentity.parse(os.pread(descriptor, _MAX_LENGTH, 0).decode(errors="replace"))


def _holder_may_be_alive(descriptor: int) -> bool:
    holder = _read_holder(descriptor)
    return holder is not None and holder.may_be_alive


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False
