"""A process that is killed before any line one likes of some modules."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection
from types import FrameType

__all__ = ["killed_at"]


def killed_at(line: int, act: Callable[[], object], files: Collection[str]) -> bool:
    """Do it in a child that is killed before the `line`-th line it executes of these files; whether it came so far."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]  # it may give None for a frame that is not watched
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
