"""Time as the loop needs it, so that a simulated cluster can bring its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is written down, steady time for what is waited for."""

    def now(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds since some moment; never set back or forward."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds, or earlier when woken."""


class RealClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))
