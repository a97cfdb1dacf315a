"""The heartbeat file that `hooks/job_submit.lua` and the watchdog read, and the identity of the process that writes it.

The first line is `unix-time mode period`. The hook holds jobs only while the heartbeat is fresh and its mode is
`enforce`; in any other mode, including `paused` and `stopped`, it leaves new jobs to Slurm. The second line names the
process that wrote it, `daemon = PROCESS HOST BOOT/START`, so that a second scheduler of the cluster is noticed. The
lock file names its holder in the same way. Settings of the hook follow, and the totals of each partition, by which it
knows what Slurm would refuse.
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
"""Index of the start time among the fields of /proc/PID/stat after the command's name."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process on a host, distinct from a later one with the same pid.

    `boot` is the boot id of its host, `started` its start time in clock ticks since that boot.
    """

    pid: int
    host: str
    boot: str
    started: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of this process, which is read once: the daemon asks for it several times per heartbeat."""
        return _own_identity()

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Parse what `text` returns; None for anything else."""
        match = _PATTERN.match(text)
        return cls(int(match[1]), match[2], match[3], int(match[4])) if match else cls._older(text)

    @classmethod
    def _older(cls, text: str) -> ProcessIdentity | None:
        """Parse the pid alone, as older releases wrote it, always on the same host."""
        match = _OLD_PATTERN.fullmatch(text)
        pid = int(match[1]) if match else 0
        started = _start_time(pid) if pid else None
        return None if started is None else cls(pid, _host(), _boot(), started)

    @property
    def text(self) -> str:
        """The identity in one line, without a line end."""
        return f"{self.pid} {self.host} {self.boot}/{self.started}"

    @property
    def is_here(self) -> bool:
        return self.host == _host()

    @property
    def may_be_alive(self) -> bool:
        """False only if the process is known to have ended: it was on this host and is gone."""
        if not self.is_here:
            return True
        return self.boot == _boot() and (_start_time(self.pid) == self.started or _is_hidden(self.pid))

    @property
    def sentence(self) -> str:
        """`process 12`, with the host if it is another one."""
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


@cache
def _own_identity() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(pid, _host(), _boot(), _start_time(pid) or 0)


os.register_at_fork(after_in_child=_own_identity.cache_clear)


@cache
def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:255] or "unknown"


@cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "0"


def _start_time(pid: int) -> int | None:
    """Start time of a process on this host in clock ticks since the boot; None if there is no such process."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[_START_FIELD])
    return None


def _is_hidden(pid: int) -> bool:
    """Whether the process exists and /proc hides it from us (hidepid)."""
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
"""Seconds that a heartbeat may lie in the future, as in hooks/job_submit.lua, since clocks differ a little."""
_MAX_LINE: Final = 400
_DAEMON: Final = "daemon = "


class HeartbeatError(SynschedError):
    """The heartbeat cannot be written, so the watchdog could not tell that the daemon ended."""


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """One heartbeat: `at` in unix seconds, a mode or PAUSED or STOPPED, the period of rounds in seconds.

    `daemon` is the process that wrote it, None if the file does not name it.
    """

    at: float
    mode: str
    period: float
    daemon: ProcessIdentity | None = None

    def is_stale(self, now: float, after: float) -> bool:
        """Whether no daemon schedules: it stopped, the heartbeat is older than `after` seconds, or is from the future.

        A clock that was set back would leave it fresh for too long; the hook ignores such a heartbeat too.
        """
        return self.mode == STOPPED or not -MAX_AHEAD <= int(now) - int(self.at) <= after

    def rival(self, now: float, after: float) -> ProcessIdentity | None:
        """The process that wrote it, if it is another one that may be alive: then two schedule one cluster."""
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
    """The heartbeat file at `path`, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def write(
        self, at: float, mode: str, period: float, in_force: str = "", daemon: ProcessIdentity | None = None
    ) -> None:
        """Write a heartbeat of `daemon`; `in_force` are the hook's settings in force, as lines of hook.conf.

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
        """The last heartbeat; None if it is missing or cannot be parsed."""
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
