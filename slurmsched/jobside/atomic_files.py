"""Files that are there whole or not at all, also after a kill or a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurmsched.jobside.untrusted import open_descriptor

_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file is made that must not be there yet, not even as a link."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by these bytes: write beside it, fsync, rename, fsync the folder. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_path(path.parent)


def replace_file_in(folder: int, name: str, data: bytes, mode: int, *, fsync: bool) -> None:
    """Replace the file `name` in an open folder by these bytes; its mode is `mode`, whatever the umask.

    A reader sees the last bytes or these; fsynced are the file and the folder only where it is done `durably`. Raises
    OSError, and then leaves nothing beside the last file.
    """
    temporary = f".{name}.{os.urandom(4).hex()}"
    with open_descriptor(temporary, _CREATE_FLAGS, folder) as descriptor:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            os.fchmod(descriptor, mode)
            if fsync:
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise
    if fsync:
        os.fsync(folder)


def fsync_path(path: Path) -> None:
    """What the file or the folder holds is on disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: Path) -> None:
    """The same for everything below as well."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            fsync_tree(child)
    fsync_path(path)


def walk_files(path: Path) -> Iterator[Path]:
    """The file itself, or every file below the folder, in order."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            yield from walk_files(child)
    else:
        yield path
