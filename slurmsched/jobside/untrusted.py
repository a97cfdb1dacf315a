"""Files that anybody may have written, taken for what they are: one JSON table of known fields, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Final

from slurmsched.jobside.errors import ReportError

__all__ = ["PLAIN", "number", "opened", "table", "whole"]

PLAIN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened that may be a link or a pipe: the one is refused, and nobody waits for the other's writer."""

_MOST: Final = 2**53
"""The largest whole number that every reader of JSON agrees on."""


@contextmanager
def opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """The descriptor of a file, below an open `folder` if there is one. A new one is for us alone. Raises OSError."""
    descriptor = os.open(path, flags, 0o600, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def table(data: bytes, what: str, *, longest: int, version: int, keys: Set[str]) -> dict[str, object]:
    """The fields of `what`, a report say, with values that may be anything yet. Raises ReportError, nothing else."""
    if len(data) > longest:
        raise ReportError(f"a {what} is longer than {longest} bytes")
    try:
        said: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"a {what} is no JSON") from error
    if not isinstance(said, dict) or said.get("version") != version:
        raise ReportError(f"a {what} is not of version {version}")
    if set(said) != keys:
        raise ReportError(f"a {what} has other fields than it should")
    return said


def whole(value: object, what: str, least: int = 0) -> int:
    """A count. Raises ReportError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise ReportError(f"a {what} counts in something else than whole numbers")
    return value


def number(value: object, what: str) -> float:
    """A measure, never negative. Raises ReportError."""
    # The bounds come first: an int of a thousand digits has no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST or not isfinite(value):
        raise ReportError(f"a {what} measures in something else than numbers")
    return float(value)
