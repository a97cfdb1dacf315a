"""Files that anybody may have written, taken for what they are: one JSON table of known fields, or nothing.

Folders below the spool that one user alone may write, opened so that nobody can put another folder in their place.

The spool is open to all, so any name in it may be somebody else's folder, a link, or each of them in turn. A folder is
therefore opened once, never through a link, and checked by its descriptor: it has to belong to the right user, and
neither its group nor others may write it. All that is done in it goes by that descriptor, so it does not matter what
its name leads to a moment later. No setting of the kernel or of systemd is needed for this.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from errno import ELOOP, ENOTDIR
from math import isfinite
from pathlib import Path
from typing import Final

from slurmsched.jobside.errors import ReportError, UntrustedFolderError

SAFE_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened that may be a link or a pipe: the one is refused, and nobody waits for the other's writer."""

_MAX_SAFE_INTEGER: Final = 2**53
"""The largest whole number that every reader of JSON agrees on."""


@contextmanager
def open_descriptor(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """The descriptor of a file, below an open `folder` if there is one. A new one is for us alone. Raises OSError."""
    descriptor = os.open(path, flags, 0o600, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def parse_fields(data: bytes, kind: str, *, max_bytes: int, version: int, keys: Set[str]) -> dict[str, object]:
    """The fields of `what`, a report say, with values that may be anything yet. Raises ReportError, nothing else."""
    if len(data) > max_bytes:
        raise ReportError(f"a {kind} is longer than {max_bytes} bytes")
    try:
        fields: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"a {kind} is no JSON") from error
    if not isinstance(fields, dict) or fields.get("version") != version:
        raise ReportError(f"a {kind} is not of version {version}")
    if set(fields) != keys:
        raise ReportError(f"a {kind} has other fields than it should")
    return fields


def parse_count(value: object, kind: str, minimum: int = 0) -> int:
    """A count. Raises ReportError."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MAX_SAFE_INTEGER:
        raise ReportError(f"a {kind} counts in something else than whole numbers")
    return value


def parse_number(value: object, kind: str) -> float:
    """A measure, never negative. Raises ReportError."""
    # The bounds come first: an int of a thousand digits has no float.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= _MAX_SAFE_INTEGER
        or not isfinite(value)
    ):
        raise ReportError(f"a {kind} measures in something else than numbers")
    return float(value)


SPOOL_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""How the spool itself is opened: its path is the administrator's, links included, and it need not be listed."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def open_owned_folder(spool: int, name: str, owners: Collection[int]) -> Iterator[int]:
    """The descriptor of the folder `name` in the open spool, which belongs to one of `owners`.

    Raises ForeignFolderError where it is not theirs alone, FileNotFoundError where there is none, and OSError.
    """
    try:
        folder = os.open(name, _FOLDER_FLAGS, dir_fd=spool)
    except OSError as error:
        if error.errno not in {ELOOP, ENOTDIR}:
            raise
        owner = os.stat(name, dir_fd=spool, follow_symlinks=False).st_uid
        raise UntrustedFolderError(f"is a link or no folder, made by user number {owner}: have it removed") from error
    try:
        status = os.fstat(folder)
        if status.st_uid not in owners:
            raise UntrustedFolderError(f"belongs to user number {status.st_uid}: have it removed")
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise UntrustedFolderError("can be written by others: chmod go-w")
        yield folder
    finally:
        os.close(folder)


def insecure_spool_reason(status: os.stat_result, owners: Collection[int]) -> str | None:
    """Why users could put folders of theirs in the place of others' in a spool with this status; None if they cannot.

    The spool has to belong to one of `owners`, and who may write it must not remove what is another's (mode 1777).
    """
    if status.st_uid not in owners:
        return f"belongs to user number {status.st_uid}"
    if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
        return "lets users remove and rename what is another's"
    return None


def is_private_spool(status: os.stat_result) -> bool:
    """Whether reports in this spool are for the group of the spool alone: mode 3773, so that folders inherit the group
    and users cannot list them."""
    return bool(status.st_mode & stat.S_ISGID) and not status.st_mode & stat.S_IROTH
