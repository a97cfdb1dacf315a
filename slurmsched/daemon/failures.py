"""What is said of an error that nobody foresaw: its kind and its place, and never anybody's text."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError

_PACKAGE: Final = "slurmsched"
_FRAMES: Final = 8
"""So many of the innermost calls are told: a recursion has thousands."""


class RoundFailedError(SynschedError):
    """A round could not be decided or carried out, for a reason that nobody foresaw."""


def describe_error(error: BaseException) -> str:
    """Its kind and the innermost of our own lines, e.g. `MemoryError in policies/fgd/asking.py:43`."""
    ours = [frame for frame in _frames(error) if _PACKAGE in Path(frame.filename).parts]
    where = f" in {_location(ours[-1])}" if ours else ""
    return f"{type(error).__name__}{where}"


def format_trace(error: BaseException) -> str:
    """The innermost calls in one line, for the log."""
    calls = (f"{_location(frame)} {frame.name}" for frame in _frames(error)[-_FRAMES:])
    return f"{type(error).__name__}: {' > '.join(calls)}"


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)


def _location(frame: traceback.FrameSummary) -> str:
    parts = Path(frame.filename).parts
    if _PACKAGE in parts:
        last = len(parts) - 1 - parts[::-1].index(_PACKAGE)
        parts = parts[last + 1 :]
    else:
        parts = parts[-2:]
    return f"{'/'.join(parts)}:{frame.lineno}"
