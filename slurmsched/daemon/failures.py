"""Descriptions of unexpected errors: their type and code location, without messages, which may hold users' text."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError

_PACKAGE: Final = "slurmsched"
_FRAMES: Final = 8
"""Most innermost calls in a trace: a recursion has thousands."""


class RoundFailedError(SynschedError):
    """An unexpected error: a round could not be decided or applied."""


def describe_error(error: BaseException) -> str:
    """Its type and the innermost line of this package, e.g. `MemoryError in policies/fgd/policy.py:43`."""
    ours = [frame for frame in _frames(error) if _PACKAGE in Path(frame.filename).parts]
    where = f" in {_location(ours[-1])}" if ours else ""
    return f"{type(error).__name__}{where}"


def format_trace(error: BaseException) -> str:
    """Its type and the innermost calls, in one line, for the log."""
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
