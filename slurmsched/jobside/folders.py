"""Folders below the spool that one user alone may write, opened so that nobody can put another folder in their place.

The spool is open to all, so any name in it may be somebody else's folder, a link, or each of them in turn. A folder is
therefore opened once, never through a link, and checked by its descriptor: it has to belong to the right user, and
neither its group nor others may write it. All that is done in it goes by that descriptor, so it does not matter what
its name leads to a moment later. No setting of the kernel or of systemd is needed for this.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from errno import ELOOP, ENOTDIR
from typing import Final

from slurmsched.jobside.errors import ForeignFolderError

__all__ = ["SPOOL", "checked_folder", "insecure_spool", "is_private"]

SPOOL: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""How the spool itself is opened: its path is the administrator's, links included, and it need not be listed."""

_FOLDER: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def checked_folder(spool: int, name: str, owners: Collection[int]) -> Iterator[int]:
    """The descriptor of the folder `name` in the open spool, which belongs to one of `owners`.

    Raises ForeignFolderError where it is not theirs alone, FileNotFoundError where there is none, and OSError.
    """
    try:
        folder = os.open(name, _FOLDER, dir_fd=spool)
    except OSError as error:
        if error.errno not in {ELOOP, ENOTDIR}:
            raise
        owner = os.stat(name, dir_fd=spool, follow_symlinks=False).st_uid
        raise ForeignFolderError(f"is a link or no folder, made by user number {owner}: have it removed") from error
    try:
        found = os.fstat(folder)
        if found.st_uid not in owners:
            raise ForeignFolderError(f"belongs to user number {found.st_uid}: have it removed")
        if found.st_mode & _OTHERS_WRITE:
            raise ForeignFolderError("can be written by others: chmod go-w")
        yield folder
    finally:
        os.close(folder)


def insecure_spool(found: os.stat_result, owners: Collection[int]) -> str | None:
    """Why users could put folders of theirs in the place of others' in a spool with this status; None if they cannot.

    The spool has to belong to one of `owners`, and who may write it must not remove what is another's (mode 1777).
    """
    if found.st_uid not in owners:
        return f"belongs to user number {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        return "lets users remove and rename what is another's"
    return None


def is_private(spool: os.stat_result) -> bool:
    """Whether reports in this spool are for the group of the spool alone: mode 3773, so that folders inherit the group
    and users cannot list them."""
    return bool(spool.st_mode & stat.S_ISGID) and not spool.st_mode & stat.S_IROTH
