"""Which process on which host schedules: said in the lock file and in the heartbeat, so that two are told apart.

The sign of life that `hooks/job_submit.lua` and the watchdog read: the dead-man's switch.

The first line is `unix-time mode period`. The hook holds jobs for us only while it is fresh and its mode is `enforce`;
any other word, `paused` and `stopped` among them, leaves new jobs to Slurm. The second line names the process that
gives it, `daemon = PROCESS HOST BOOT/START`, so that a second scheduler over the same file is noticed.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError

_PATTERN: Final = re.compile(r"([0-9]{1,10}) ([A-Za-z0-9_.-]{1,255}) ([0-9a-f-]{1,40})/([0-9]{1,20})")
_OLD_PATTERN: Final = re.compile(r"([0-9]{1,10})\n?")
_START_FIELD: Final = 19
"""The field of /proc/PID/stat, counted behind the command's name from 0, that says when the process started."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process: `boot` is its host's boot, `started` the clock ticks after which it began, so that a process number
    that is used again is not mistaken for it."""

    pid: int
    host: str
    boot: str
    started: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """This process. Asked anew each time: it may have been forked."""
        pid = os.getpid()
        return cls(pid, _host(), _boot(), _start_time(pid) or 0)

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """What `text` wrote; None where it is something else."""
        match = _PATTERN.match(text)
        return cls(int(match[1]), match[2], match[3], int(match[4])) if match else cls._older(text)

    @classmethod
    def _older(cls, text: str) -> ProcessIdentity | None:
        """Releases before this one wrote the process number alone; it can only be of this host."""
        match = _OLD_PATTERN.fullmatch(text)
        pid = int(match[1]) if match else 0
        started = _start_time(pid) if pid else None
        return None if started is None else cls(pid, _host(), _boot(), started)

    @property
    def text(self) -> str:
        """In one line, without its end."""
        return f"{self.pid} {self.host} {self.boot}/{self.started}"

    @property
    def is_here(self) -> bool:
        return self.host == _host()

    @property
    def may_be_alive(self) -> bool:
        """False only where the process is known to have ended: it was of this host, and is not there any more."""
        if not self.is_here:
            return True
        return self.boot == _boot() and (_start_time(self.pid) == self.started or _is_hidden(self.pid))

    @property
    def sentence(self) -> str:
        """`process 12`, with the host where it is another one."""
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


@cache
def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:255] or "unknown"


@cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "0"


def _start_time(pid: int) -> int | None:
    """When a process of this host began, in clock ticks since the boot; None where there is none."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[_START_FIELD])
    return None


def _is_hidden(pid: int) -> bool:
    """Whether it is there and /proc does not show it to us (hidepid)."""
    if Path(f"/proc/{pid}").exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


PAUSED: Final = "paused"
STOPPED: Final = "stopped"
MAX_AHEAD: Final = 120
"""Seconds that a sign of life may lie in the future, as in hooks/job_submit.lua: clocks may be a little off."""
_MAX_LINE: Final = 400
_DAEMON: Final = "daemon = "


class HeartbeatError(SynschedError):
    """The heartbeat cannot be written: nobody could tell that we are gone."""


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """One sign of life: `at` in unix seconds, a mode or PAUSED or STOPPED, the period of rounds in seconds.

    `daemon` is the process that gave it, None where it was not said.
    """

    at: float
    mode: str
    period: float
    daemon: ProcessIdentity | None = None

    def is_stale(self, now: float, after: float) -> bool:
        """Whether nobody schedules any more: stopped, silent for longer than `after` seconds, or from the future.

        A clock that was set back leaves a sign that would be fresh for as long; the hook does not take it for one.
        """
        return self.mode == STOPPED or not -MAX_AHEAD <= int(now) - int(self.at) <= after

    def rival(self, now: float, after: float) -> ProcessIdentity | None:
        """The process that gave it, where that is not this one and may live: then two schedule one cluster."""
        sender = self.daemon
        if (
            sender is None
            or self.is_stale(now, after)
            or sender == ProcessIdentity.current()
            or not sender.may_be_alive
        ):
            return None
        return sender


class HeartbeatFile:
    """The file at `path`, replaced whole, so that no reader sees half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def write(
        self, at: float, mode: str, period: float, in_force: str = "", daemon: ProcessIdentity | None = None
    ) -> None:
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

    def read(self) -> HeartbeatRecord | None:
        """The last sign of life; None where there is none that can be read."""
        try:
            with self._path.open(encoding="utf-8") as file:
                at, mode, period = file.readline(_MAX_LINE).split()
                second = file.readline(_MAX_LINE)
            daemon = ProcessIdentity.parse(second.removeprefix(_DAEMON)) if second.startswith(_DAEMON) else None
            return HeartbeatRecord(float(at), mode, float(period), daemon)
        except (OSError, ValueError, OverflowError):
            return None

    def _replace(self, text: str) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o644)  # slurmctld reads it as SlurmUser
        fresh.replace(self._path)
