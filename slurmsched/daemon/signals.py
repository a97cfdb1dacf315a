"""What people and systemd tell a running daemon: stop, or read the settings again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Requests", "heeding"]


class Requests:
    """What was asked for and has not been done yet. The loop looks here between two steps."""

    def __init__(self) -> None:
        self.stop = False
        self._reload = False

    def take_reload(self) -> bool:
        """Whether a reload was asked for since the last time."""
        asked, self._reload = self._reload, False
        return asked

    def heed(self, number: int, _frame: FrameType | None = None) -> None:
        """A signal came."""
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self.stop = True


@contextmanager
def heeding(requests: Requests) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT ask for a stop and SIGHUP for a reload; what was in hand is finished."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [(number, signal.signal(number, requests.heed)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
