"""The sign of life that `hooks/job_submit.lua` and the watchdog read: the dead-man's switch.

The first line is `unix-time mode period`. The hook holds jobs for us only while it is fresh and its mode is `enforce`;
any other word, `paused` and `stopped` among them, leaves new jobs to Slurm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError

__all__ = ["PAUSED", "STOPPED", "Beat", "Heartbeat", "HeartbeatError"]

PAUSED: Final = "paused"
STOPPED: Final = "stopped"
_LONGEST: Final = 200


class HeartbeatError(SynschedError):
    """The heartbeat cannot be written: nobody could tell that we are gone."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life: `at` in unix seconds, a mode or PAUSED or STOPPED, the period of rounds in seconds."""

    at: float
    mode: str
    period: float

    def stale(self, now: float, after: float) -> bool:
        """Whether nobody schedules any more: stopped, or silent for longer than `after` seconds."""
        return self.mode == STOPPED or now - self.at > after


class Heartbeat:
    """The file at `path`, replaced whole, so that no reader sees half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def beat(self, at: float, mode: str, period: float, in_force: str = "") -> None:
        """We live; `in_force` are the hook's settings as we have them (hook.conf's lines). Raises HeartbeatError."""
        try:
            self._replace(f"{int(at)} {mode} {int(period)}\n{in_force}")
        except OSError as error:
            raise HeartbeatError(
                f"cannot write the heartbeat {self._path}: {error.strerror}; create its folder, or set hook.heartbeat"
            ) from error

    def last(self) -> Beat | None:
        """The last sign of life; None where there is none that can be read."""
        try:
            with self._path.open(encoding="utf-8") as file:
                at, mode, period = file.readline(_LONGEST).split()
            return Beat(float(at), mode, float(period))
        except (OSError, ValueError):
            return None

    def _replace(self, text: str) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o644)  # slurmctld reads it as SlurmUser
        fresh.replace(self._path)
