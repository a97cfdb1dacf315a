"""The sign of life that `hooks/job_submit.lua` and the watchdog read: the dead-man's switch.

The first line is `unix-time mode period`. The hook holds jobs for us only while it is fresh and its mode is `enforce`;
any other word, `paused` and `stopped` among them, leaves new jobs to Slurm. The second line names the process that
gives it, `daemon = PROCESS HOST BOOT/START`, so that a second scheduler over the same file is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.daemon.instance import Instance
from slurmsched.model import SynschedError

__all__ = ["AHEAD", "PAUSED", "STOPPED", "Beat", "Heartbeat", "HeartbeatError"]

PAUSED: Final = "paused"
STOPPED: Final = "stopped"
AHEAD: Final = 120
"""Seconds that a sign of life may lie in the future, as in hooks/job_submit.lua: clocks may be a little off."""
_LONGEST: Final = 400
_DAEMON: Final = "daemon = "


class HeartbeatError(SynschedError):
    """The heartbeat cannot be written: nobody could tell that we are gone."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life: `at` in unix seconds, a mode or PAUSED or STOPPED, the period of rounds in seconds.

    `daemon` is the process that gave it, None where it was not said.
    """

    at: float
    mode: str
    period: float
    daemon: Instance | None = None

    def stale(self, now: float, after: float) -> bool:
        """Whether nobody schedules any more: stopped, silent for longer than `after` seconds, or from the future.

        A clock that was set back leaves a sign that would be fresh for as long; the hook does not take it for one.
        """
        return self.mode == STOPPED or not -AHEAD <= int(now) - int(self.at) <= after

    def rival(self, now: float, after: float) -> Instance | None:
        """The process that gave it, where that is not this one and may live: then two schedule one cluster."""
        given = self.daemon
        if given is None or self.stale(now, after) or given == Instance.own() or not given.may_live:
            return None
        return given


class Heartbeat:
    """The file at `path`, replaced whole, so that no reader sees half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def beat(self, at: float, mode: str, period: float, in_force: str = "", daemon: Instance | None = None) -> None:
        """`daemon` lives; `in_force` are the hook's settings as it has them (hook.conf's lines).

        Raises HeartbeatError.
        """
        who = f"{_DAEMON}{daemon.text}\n" if daemon else ""
        try:
            self._replace(f"{int(at)} {mode} {int(period)}\n{who}{in_force}")
        except OSError as error:
            raise HeartbeatError(
                f"cannot write the heartbeat {self._path}: {error.strerror}; create its folder, or set hook.heartbeat"
            ) from error

    def last(self) -> Beat | None:
        """The last sign of life; None where there is none that can be read."""
        try:
            with self._path.open(encoding="utf-8") as file:
                at, mode, period = file.readline(_LONGEST).split()
                second = file.readline(_LONGEST)
            daemon = Instance.read(second.removeprefix(_DAEMON)) if second.startswith(_DAEMON) else None
            return Beat(float(at), mode, float(period), daemon)
        except (OSError, ValueError, OverflowError):
            return None

    def _replace(self, text: str) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o644)  # slurmctld reads it as SlurmUser
        fresh.replace(self._path)
