"""Files that are there whole or not at all, also after a kill or a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurmsched.jobside.untrusted import opened

__all__ = ["files_below", "replace_in", "sync", "sync_tree", "write_durably"]

_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file is made that must not be there yet, not even as a link."""


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file by these bytes: write beside it, fsync, rename, fsync the folder. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with fresh.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)


def replace_in(folder: int, name: str, data: bytes, mode: int, *, durably: bool) -> None:
    """Replace the file `name` in an open folder by these bytes; its mode is `mode`, whatever the umask.

    A reader sees the last bytes or these; fsynced are the file and the folder only where it is done `durably`. Raises
    OSError, and then leaves nothing beside the last file.
    """
    fresh = f".{name}.{os.urandom(4).hex()}"
    with opened(fresh, _FRESH, folder) as descriptor:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            os.fchmod(descriptor, mode)
            if durably:
                os.fsync(descriptor)
            os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(fresh, dir_fd=folder)
            raise
    if durably:
        os.fsync(folder)


def sync(path: Path) -> None:
    """What the file or the folder holds is on disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """The same for everything below as well."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            sync_tree(child)
    sync(path)


def files_below(path: Path) -> Iterator[Path]:
    """The file itself, or every file below the folder, in order."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            yield from files_below(child)
    else:
        yield path
