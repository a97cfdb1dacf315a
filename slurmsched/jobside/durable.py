"""Files that are there whole or not at all, also after a kill or a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["files_below", "sync", "sync_tree", "write_durably"]


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file by these bytes: write beside it, fsync, rename, fsync the folder. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)


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
