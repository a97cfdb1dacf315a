"""Which process on which host schedules: said in the lock file and in the heartbeat, so that two are told apart."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["Instance"]

_TEXT: Final = re.compile(r"([0-9]{1,10}) ([A-Za-z0-9_.-]{1,255}) ([0-9a-f-]{1,40})/([0-9]{1,20})")
_OLDER: Final = re.compile(r"([0-9]{1,10})\n?")
_STARTED: Final = 19
"""The field of /proc/PID/stat, counted behind the command's name from 0, that says when the process started."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A process: `boot` is its host's boot, `started` the clock ticks after which it began, so that a process number
    that is used again is not mistaken for it."""

    pid: int
    host: str
    boot: str
    started: int

    @classmethod
    def own(cls) -> Instance:
        """This process. Asked anew each time: it may have been forked."""
        pid = os.getpid()
        return cls(pid, _host(), _boot(), _start_of(pid) or 0)

    @classmethod
    def read(cls, text: str) -> Instance | None:
        """What `text` wrote; None where it is something else."""
        match = _TEXT.match(text)
        return cls(int(match[1]), match[2], match[3], int(match[4])) if match else cls._older(text)

    @classmethod
    def _older(cls, text: str) -> Instance | None:
        """Releases before this one wrote the process number alone; it can only be of this host."""
        match = _OLDER.fullmatch(text)
        pid = int(match[1]) if match else 0
        started = _start_of(pid) if pid else None
        return None if started is None else cls(pid, _host(), _boot(), started)

    @property
    def text(self) -> str:
        """In one line, without its end."""
        return f"{self.pid} {self.host} {self.boot}/{self.started}"

    @property
    def is_here(self) -> bool:
        return self.host == _host()

    @property
    def may_live(self) -> bool:
        """False only where the process is known to have ended: it was of this host, and is not there any more."""
        if not self.is_here:
            return True
        return self.boot == _boot() and (_start_of(self.pid) == self.started or _is_hidden(self.pid))

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


def _start_of(pid: int) -> int | None:
    """When a process of this host began, in clock ticks since the boot; None where there is none."""
    with suppress(OSError, ValueError, IndexError):
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(said.rpartition(")")[2].split()[_STARTED])
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
