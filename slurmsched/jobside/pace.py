"""How fast the steps of this run go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Pace"]

_WINDOW: Final = 30.0
"""Seconds of work after which half of the latest rate is new."""


@dataclass(slots=True)
class Pace:
    """Steps over the seconds that were spent on them; what passes between `pause` and `resume` does not count.

    Times are of any steady clock, in seconds. What is done before the first look warms everything up, and does not
    count either.
    """

    done: int = 0
    busy: float = 0.0
    rate: float = 0.0
    _since: float | None = None
    _warm: bool = False

    def resume(self, now: float) -> None:
        """Work begins, or goes on."""
        self._since = now

    def pause(self) -> None:
        """Something else than steps is done from here on."""
        self._since = None

    def look(self, steps: int, now: float) -> None:
        """So many steps have been done since the last look."""
        since, self._since = self._since, now
        if not self._warm or since is None:
            self._warm = True
            return
        spent = now - since
        self.done += steps
        self.busy += spent
        if spent > 0:
            part = 0.5 ** (spent / _WINDOW) if self.rate else 0.0
            self.rate = part * self.rate + (1 - part) * steps / spent
