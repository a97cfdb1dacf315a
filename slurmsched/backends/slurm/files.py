"""A configuration file replaced in one step, so that Slurm never reads half of one."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from slurmsched.backends.slurm.errors import UnsafeError

__all__ = ["content", "replace_content"]


def content(path: str) -> str | None:
    """What the file holds, None where there is none. Raises OSError, UnsafeError."""
    with suppress(FileNotFoundError):
        return _absolute(path).read_text(encoding="utf-8")
    return None


def replace_content(path: str, text: str | None) -> None:
    """Put `text` there, keeping owner and mode; None removes the file. Raises OSError, UnsafeError."""
    target = _absolute(path)
    if text is None:
        target.unlink(missing_ok=True)
        return
    target = target.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            _like(target, file.fileno())
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _like(target: Path, descriptor: int) -> None:
    try:
        known = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, 0o644)
        return
    os.fchmod(descriptor, known.st_mode & 0o7777)
    if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, known.st_uid, known.st_gid)


def _absolute(path: str) -> Path:
    if not Path(path).is_absolute():
        raise UnsafeError(f"not an absolute path: {path[:80]!r}")
    return Path(path)
