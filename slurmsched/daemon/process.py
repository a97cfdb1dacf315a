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
    """Requests by signals that are not handled yet; the loop checks them between two steps."""

    def __init__(self) -> None:
        self.stop = False
        self._reload = False

    def take_reload(self) -> bool:
        """Whether a reload was requested since the last call."""
        requested, self._reload = self._reload, False
        return requested

    def handle(self, number: int, _frame: FrameType | None = None) -> None:
        """Store the request that this signal stands for."""
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self.stop = True


@contextmanager
def handle_signals(requests: SignalRequests) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT request a stop and SIGHUP a reload, after the current step."""
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
    """Limit the memory of this process to so many MiB; allocations beyond fail with MemoryError.

    The kernel limits reserved memory, used or not, which includes stacks and buffers that libraries reserve when they
    are imported. The limit is therefore what is reserved now plus `mebibytes` minus what is used now. Only the soft
    limit is set, so that a reload can raise it. Does nothing without /proc or if the hard limit is lower.
    """
    memory = _memory_use()
    if memory is None:
        return
    reserved, used = memory
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = reserved + max(mebibytes * _MIB - used, 0)
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _memory_use() -> tuple[int, int] | None:
    """Bytes of reserved and of used memory; None if unknown."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        bytes_by_name = {
            name: int(value.split()[0]) * _KIB
            for name, _, value in (line.partition(":") for line in lines)
            if name in ("VmData", "VmRSS")
        }
        return bytes_by_name["VmData"], bytes_by_name["VmRSS"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
