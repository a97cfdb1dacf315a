"""What to do after a step: go on, save, yield the resources or end. The same on all ranks."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from slurmsched.jobside.notice import Notice
from slurmsched.jobside.ranks import Agree

__all__ = ["Lease", "Wish"]

_OFTEN: Final = 0.25
"""Seconds between two looks of a rank that is alone; a signal is heeded after the very step."""
_SELDOM: Final = 1.0
"""The same where ranks have to talk about it."""
_MOST: Final = 32
"""Steps between two looks where ranks talk: bounds what a job loses that becomes slow all of a sudden."""


class Wish(IntEnum):
    """What one rank wants, weakest first; the strongest of any rank is done by all."""

    GO_ON = 0
    SAVE = 1
    YIELD = 2
    """Save and wait for the requeue."""
    END = 3
    """Save and leave at once."""


class Lease:
    """Asks, at steps that are the same on all ranks, what signals and time have brought.

    A rank may not act on a signal alone: others are a step ahead or behind, and wait for it in the next collective
    operation for ever. `every` is the time between two checkpoints in seconds, None for none but at the lease's end.
    `limit` are seconds of work after which a profiling run ends.
    """

    def __init__(self, notice: Notice, agree: Agree, *, together: bool, every: float | None, limit: float | None):
        self._notice = notice
        self._agree = agree
        self._every = every
        self._limit = limit
        self._together = together
        self._saved = 0.0
        self._distance = 1
        self.next_look = 0
        """The count of steps at which to look."""

    def begin(self, steps: int, now: float) -> None:
        """The run begins after so many steps; times are of a steady clock, in seconds."""
        self._saved = now
        self.next_look = steps + 1

    def saved(self, now: float) -> None:
        """A checkpoint was written."""
        self._saved = now

    def look(self, steps: int, now: float, *, step_seconds: float, busy: float) -> Wish:
        """What all ranks do now, `step_seconds` being what a step takes of late."""
        wish, distance = self._agree((self._own(now, busy), -self._wanted(step_seconds)))
        self._distance = -distance
        self.next_look = steps + self._distance
        return Wish(wish)

    def _own(self, now: float, busy: float) -> Wish:
        if self._notice.leaving or (self._limit is not None and busy >= self._limit):
            return Wish.END
        if self._notice.lease_over:
            return Wish.YIELD
        due = self._every is not None and now - self._saved >= self._every
        return Wish.SAVE if due else Wish.GO_ON

    def _wanted(self, step_seconds: float) -> int:
        """Steps to the next look: more only by and by, since a first step says little of the others."""
        seconds = _SELDOM if self._together else _OFTEN
        steps = int(seconds / step_seconds) if step_seconds > 0 else _MOST
        most = min(2 * self._distance, _MOST) if self._together else 2 * self._distance
        return max(1, min(steps, most))
