"""Lock file that allows one scheduler per database; the kernel releases the lock when the process ends.

`flock` needs no write permission, so every user who can open the file could take the lock. The file is therefore
private (mode 0600, no link, owned by the daemon's user). A file that others could open is replaced, not just made
private: a user who opened it before could hold its lock for ever.
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
    """Another process schedules with this database; `owner` is None if it is not known for certain."""

    def __init__(self, database: Path, owner: ProcessIdentity | None) -> None:
        who = "another process" if owner is None else owner.sentence
        super().__init__(f"{who} already schedules with {database}: stop it first, or set another storage.path")
        self.owner = owner

    @property
    def pid(self) -> int | None:
        return self.owner.pid if self.owner else None


@contextmanager
def exclusive_lock(database: Path) -> Iterator[None]:
    """Hold the lock of this database inside the block. Raises AlreadyRunningError, LockError."""
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
    """The process that the lock file names as holder; None if it has ended or cannot be read."""
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
    """Counts rounds skipped in a row because the lock was taken, in a file beside it. Never raises OSError."""

    path: Path

    @classmethod
    def beside(cls, database: Path) -> SkipCounter:
        return cls(database.with_name(database.name + ".skipped"))

    def increment(self) -> int:
        """Count one more and return the count; 1 if it cannot be stored."""
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
        """Remove the count, after a round was run."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


def _open_locked(path: Path) -> int:
    """Open and lock the private lock file. Raises BlockingIOError if the lock is taken, OSError."""
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
    """Replace a lock file that others could open with a private one that is already locked; return its descriptor.

    If two processes do so at once, the second gets BlockingIOError: the new file is locked under either name.
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
    """Whether no other user can open the file. Raises LockError if it is not a regular file of ours."""
    status = os.fstat(descriptor)
    owners = {0, os.geteuid(), path.parent.stat().st_uid}
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in owners:
        raise LockError(f"{path} is not a file of the daemon's user: remove it, or run as the user who owns it")
    return stat.S_IMODE(status.st_mode) & 0o077 == 0


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
