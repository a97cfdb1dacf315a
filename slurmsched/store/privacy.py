"""Files of ours that nobody else may read or write: the database, what SQLite puts beside it, copies of it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurmsched.store.errors import ReadOnlyStoreError, StoreError

__all__ = ["OpenFolderError", "private_file", "private_folder"]

_OURS_ALONE: Final = 0o600
_OTHERS: Final = 0o077
_WRITABLE: Final = 0o022


class OpenFolderError(StoreError):
    """Others may put files where ours are, or exchange them."""


def private_folder(folder: Path) -> None:
    """Check that a folder is there, and that nobody else may write into it: neither its group nor the world, and that
    it belongs to us, to root, or, where we are root, to the service. Raises StoreError.
    """
    try:
        found = folder.stat()
    except OSError as error:
        raise ReadOnlyStoreError(f"the folder {folder} does not exist: create it, or set storage.path") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ReadOnlyStoreError(f"{folder} is no folder: set storage.path")
    if found.st_mode & _WRITABLE:
        raise OpenFolderError(f"others may write into {folder}: 'chmod go-w {folder}', or set storage.path")
    if os.geteuid() and found.st_uid not in (0, os.geteuid()):
        raise OpenFolderError(f"{folder} belongs to another user: run as that user, or set storage.path")
    if not os.access(folder, os.W_OK):
        raise ReadOnlyStoreError(f"cannot write into {folder}: run as the user who owns it, or set storage.path")


def private_file(path: Path) -> None:
    """Make sure that the file is there and that its owner alone may read and write it, whatever the umask.

    SQLite gives its journal the same mode. An existing file is not opened for it: closing it would drop the locks that
    this process has on it. Its folder is private, so nobody exchanges it meanwhile. Raises StoreError.
    """
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _OURS_ALONE)
            try:
                os.fchmod(descriptor, _OURS_ALONE)
            finally:
                os.close(descriptor)
            return
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ReadOnlyStoreError(f"cannot write {path}: it is no regular file; set storage.path")
        if found.st_mode & _OTHERS:
            path.chmod(_OURS_ALONE)
    except OSError as error:
        raise ReadOnlyStoreError(
            f"cannot write {path} ({error.strerror}): run as the user who owns it and its folder"
        ) from error
