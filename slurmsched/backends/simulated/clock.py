"""A clock that only moves when it is told to."""

from __future__ import annotations

__all__ = ["VirtualClock"]


class VirtualClock:
    """Unix seconds that pass by `advance` and `sleep` alone; the cluster catches up with it when it is looked at."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Unix seconds."""
        return self._now

    def monotonic(self) -> float:
        """The same seconds: this clock is never set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Raises ValueError for a negative time."""
        self.advance_to(self._now + seconds)

    def advance_to(self, time: float) -> None:
        """Raises ValueError for a time that has passed."""
        if time < self._now:
            raise ValueError(f"the clock stands at {self._now:g} and cannot go back to {time:g}")
        self._now = time

    def sleep(self, seconds: float) -> None:
        """As the daemon's clock has it: nobody waits, the time is simply later."""
        self.advance(max(seconds, 0.0))
