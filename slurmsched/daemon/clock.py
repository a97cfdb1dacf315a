"""The clock that the daemon uses, so that a simulated cluster can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is recorded, monotonic time for waiting."""

    def now(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never set back or forward."""

    def sleep(self, seconds: float) -> None:
        """Return after this many seconds, or earlier if woken."""


class RealClock:
    """The clock of this host."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))
