"""The daemon as a process: signals that ask it to stop or to reload, and the limit of its own memory."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final


class SignalRequests:
    """What was asked for and has not been done yet. The loop looks here between two steps."""

    def __init__(self) -> None:
        self.stop = False
        self._reload = False

    def take_reload(self) -> bool:
        """Whether a reload was asked for since the last time."""
        asked, self._reload = self._reload, False
        return asked

    def handle(self, number: int, _frame: FrameType | None = None) -> None:
        """A signal came."""
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self.stop = True


@contextmanager
def handle_signals(requests: SignalRequests) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT ask for a stop and SIGHUP for a reload; what was in hand is finished."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [(number, signal.signal(number, requests.handle)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


_MIB: Final = 1024 * 1024
_KIB: Final = 1024
_STATUS: Final = Path("/proc/self/status")


def limit_own_memory(mebibytes: int) -> None:
    """Let allocations fail with MemoryError once the process takes more than that.

    The kernel limits memory that could be written, used or not, which is more than what is used by the stacks and
    buffers that libraries reserved when they were imported. So the limit is what is reserved now, and the difference
    of `mebibytes` and what is used now. The hard limit stays, so that a reload may raise it again. Where the kernel
    does not say what is in use (no /proc), or allows less already, nothing is done.
    """
    taken = _taken()
    if taken is None:
        return
    reserved, used = taken
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = reserved + max(mebibytes * _MIB - used, 0)
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _taken() -> tuple[int, int] | None:
    """Bytes of data that are reserved, and bytes in use."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        found = {
            name: int(value.split()[0]) * _KIB
            for name, _, value in (line.partition(":") for line in lines)
            if name in ("VmData", "VmRSS")
        }
        return found["VmData"], found["VmRSS"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
