"""Whether somebody schedules: the daemon's sign of life and its last round, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slurmsched.daemon.heartbeat import STOPPED, Beat
from slurmsched.report.quantities import duration

__all__ = ["Life", "Liveness", "liveness"]

_LATE: Final = 2.0
"""Periods after which a round is late."""

_GIVES_BACK: Final = "'synsched release' gives jobs back"


class Life(StrEnum):
    """What the sign of life says."""

    ALIVE = "alive"
    LATE = "late"
    """It lives, and its rounds do not end in time."""
    GONE = "gone"
    """It was there and is not any more: stopped, or silent."""
    NEVER = "never"
    """Nothing has ever run here."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The verdict, with what to do about it. Ages in seconds, None where there was none."""

    life: Life
    sentence: str
    heartbeat_age: float | None
    round_age: float | None

    @property
    def well(self) -> bool:
        return self.life is Life.ALIVE


def liveness(now: float, beat: Beat | None, ended: float | None, period: float, stale_after: float) -> Liveness:
    """Judge by the last sign of life, the end of the last round (unix seconds), and the two spans of the settings."""
    beat_age = None if beat is None else max(now - beat.at, 0.0)
    round_age = None if ended is None else max(now - ended, 0.0)
    life, sentence = Life.ALIVE, "the first round is under way"
    if beat is None and round_age is None:
        life, sentence = Life.NEVER, "nothing has run yet: start 'synsched run'"
    elif beat is None or beat.stale(now, stale_after):
        life, sentence = Life.GONE, f"nobody schedules: {_since(beat, beat_age)}; 'synsched run' goes on, {_GIVES_BACK}"
    elif round_age is not None and round_age > _LATE * period:
        due = f"one is due every {duration(period)}, the last ended {duration(round_age)} ago"
        life, sentence = Life.LATE, f"rounds are late: {due}; 'synsched doctor' looks for the cause"
    elif round_age is not None:
        sentence = f"last round {duration(round_age)} ago"
    return Liveness(life, sentence, beat_age, round_age)


def _since(beat: Beat | None, age: float | None) -> str:
    if beat is None or age is None:
        return "there is no heartbeat"
    if beat.mode == STOPPED:
        return f"stopped {duration(age)} ago"
    return f"no sign of life for {duration(age)}" if age else "the heartbeat is from the future: is a clock wrong?"
