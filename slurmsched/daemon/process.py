"""The daemon as a process: signals that ask it to stop or to reload, the limit of its own memory, and the processes
beside it, in which it forecasts and writes its page."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import FrameType
from typing import BinaryIO, ClassVar, Final

from slurmsched.daemon.clock import Clock, RealClock
from slurmsched.model import EncodingError, QueueForecast, decode
from slurmsched.store.errors import printable_line


class SignalRequests:
    """Requests by signals that are not handled yet; the loop checks them between two steps."""

    def __init__(self) -> None:
        self.stop = False
        self._reload = False

    def take_reload(self) -> bool:
        """Whether a reload was requested since the last call."""
        requested, self._reload = self._reload, False
        return requested

    def handle(self, number: int, _frame: FrameType | None = None) -> None:
        """Store the request that this signal stands for."""
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self.stop = True


@contextmanager
def handle_signals(requests: SignalRequests) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT request a stop and SIGHUP a reload, after the current step."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [(number, signal.signal(number, requests.handle)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


_MIB: Final = 1024 * 1024
_KIB: Final = 1024
_STATUS: Final = Path("/proc/self/status")


def limit_own_memory(mebibytes: int) -> None:
    """Limit the memory of this process to so many MiB; allocations beyond fail with MemoryError.

    The kernel limits reserved memory, used or not, which includes stacks and buffers that libraries reserve when they
    are imported. The limit is therefore what is reserved now plus `mebibytes` minus what is used now. Only the soft
    limit is set, so that a reload can raise it. Does nothing without /proc or if the hard limit is lower.
    """
    memory = _memory_use()
    if memory is None:
        return
    reserved, used = memory
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = reserved + max(mebibytes * _MIB - used, 0)
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _memory_use() -> tuple[int, int] | None:
    """Bytes of reserved and of used memory; None if unknown."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        bytes_by_name = {
            name: int(value.split()[0]) * _KIB
            for name, _, value in (line.partition(":") for line in lines)
            if name in ("VmData", "VmRSS")
        }
        return bytes_by_name["VmData"], bytes_by_name["VmRSS"]
    except (OSError, KeyError, ValueError, IndexError):
        return None


_LONGEST_ANSWER: Final = 16 << 20
"""Bytes of an answer; one of 10,000 jobs has 1.4 MB."""
_LONGEST_COMPLAINT: Final = 1000
_GRACE: Final = 120.0
"""Seconds beyond twice its budget that a process may take to start, to read and to end."""
_LOWEST: Final = 19
_FIRST_TO_GO: Final = "1000"
"""The process that the kernel ends first for want of memory (proc(5), oom_score_adj)."""


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    answer: BinaryIO
    complaint: BinaryIO
    until: float


class SideProcess:
    """Runs `command` in a process of its own, one at a time; nobody ever waits for it. `lack` says what is not there
    where it fails.

    It writes to memory files, so it is never stopped by a full pipe, and what it says is read once it has ended.
    """

    def __init__(self, command: Sequence[str], clock: Clock, log: Callable[[str], None], lack: str) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._log = log
        self._lack = lack
        self._child: _Child | None = None

    @property
    def runs(self) -> bool:
        return self._child is not None

    def start_with(self, arguments: Sequence[str], longest: float) -> None:
        """Start it, unless one still runs or there is no command; it may take so many seconds. A failure is only
        logged."""
        if not self._command or self._child is not None:
            return
        files = list[BinaryIO]()
        try:
            files += (os.fdopen(os.memfd_create(name), "r+b") for name in ("answer", "complaint"))
            process = subprocess.Popen(
                [*self._command, *arguments], stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1]
            )
        except OSError as error:
            self._log(f"{self._lack}: {error.strerror or error}")
            _close(files)
        else:
            self._child = _Child(process, files[0], files[1], self._clock.monotonic() + longest)

    def answer(self) -> str | None:
        """Return what it printed once, when it has ended; one that takes far too long is killed. Where it failed it is
        logged why."""
        child = self._child
        if child is None:
            return None
        if child.process.poll() is None:
            if self._clock.monotonic() >= child.until:
                self._log(f"{self._lack}: it took too long")
                self.stop()
            return None
        self._child = None
        answer, complaint = (_content(file, most) for file, most in _sizes(child))
        _close((child.answer, child.complaint))
        if child.process.returncode == 0:
            return answer
        self.failed(printable_line(complaint) or f"it ended with status {child.process.returncode}")
        return None

    def failed(self, why: str) -> None:
        """Log why there is nothing, in one line."""
        self._log(f"{self._lack}: {why}")

    def stop(self) -> None:
        """Kill it and wait for its end, so that nothing of it is left."""
        if self._child is not None:
            self._child.process.kill()
            self._child.process.wait()
            _close((self._child.answer, self._child.complaint))
            self._child = None


class ForecastProcess(SideProcess):
    """The process that forecasts from the last round."""

    def __init__(self, command: Sequence[str], clock: Clock, log: Callable[[str], None]) -> None:
        super().__init__(command, clock, log, "nothing is forecast")

    def start(self, mode: str, budget: float) -> None:
        """Start it with so many seconds of its own, if it can be."""
        self.start_with(("--mode", mode, "--budget", f"{max(1, round(budget))}"), 2 * budget + _GRACE)

    def collect(self) -> QueueForecast | None:
        """Return the forecast once, when it is made."""
        answer = self.answer()
        if answer is None:
            return None
        try:
            return decode(QueueForecast, answer)
        except EncodingError:
            self.failed(f"an answer of {len(answer)} characters that is no forecast")
            return None


class PageProcess(SideProcess):
    """The process that writes the page of the live system (`storage.page`), at most every 30 s."""

    APART: ClassVar[float] = 30.0

    def __init__(self, command: Sequence[str], clock: Clock, log: Callable[[str], None]) -> None:
        super().__init__(command, clock, log, "the page is not written")
        self._due = False
        self._next = -inf

    def published(self) -> None:
        """Note that there is something new to write."""
        self._due = True

    def go_on(self, path: str) -> None:
        """Collect one that has ended, and start one if it is time and there is something new to write to that path."""
        self.answer()
        if path and self._due and not self.runs and self._clock.monotonic() >= self._next:
            self._due, self._next = False, self._clock.monotonic() + self.APART
            self.start_with(("--out", path), _GRACE)


def _sizes(child: _Child) -> tuple[tuple[BinaryIO, int], ...]:
    return (child.answer, _LONGEST_ANSWER), (child.complaint, _LONGEST_COMPLAINT)


def _content(file: BinaryIO, most: int) -> str:
    """What was written to the file, up to so many bytes."""
    return os.pread(file.fileno(), most, 0).decode(errors="replace")


def _close(files: Sequence[BinaryIO]) -> None:
    for file in files:
        file.close()


def step_back() -> None:
    """Give this process the lowest priority, and make it the first to go where memory is short."""
    with suppress(OSError):
        os.nice(_LOWEST)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


class ClockWhileParentLives(RealClock):
    """The clock of this host, by which all time is over once the parent of this process has gone."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def monotonic(self) -> float:
        return super().monotonic() if os.getppid() == self._parent else inf
