"""What goes wrong in a soak: faults drawn by a generator, and a cluster and a clock that have them.

The daemon sees a fault where a real one would show: an unreachable slurmctld in what the backend raises, a full disk in
what SQLite itself answers, a kill in the middle of a round as an end after which nothing of the process does anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from threading import get_ident
from time import process_time
from typing import Final, TypeVar

from slurmsched.backends.protocol import (
    BackendError,
    CallCounts,
    FinishedPage,
    Identity,
    JobOrigin,
    UnreachableError,
)
from slurmsched.backends.simulated import SimulatedBackend, VirtualClock
from slurmsched.model import JobId, Operation, Outcome, Result, Snapshot, Verb

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 86400.0


T = TypeVar("T")


class SoakFault(StrEnum):
    """A kind of fault."""

    NODE_DOWN = "node down"
    NODE_DRAINED = "node drained"
    UNREACHABLE = "slurmctld unreachable"
    SLOW = "slurmctld slow"
    HALF = "slurmctld answers half"
    NO_ACCOUNTING = "no accounting"
    LOCKED = "database locked"
    FULL = "disk full"
    READ_ONLY = "database read-only"
    CLOCK = "clock jumps"
    KILLED = "daemon killed"


@dataclass(frozen=True, slots=True)
class DrawnFault:
    """A fault from `at` for so many `seconds` (both since the start). `subject` is a node.

    `amount` is what a call takes (SLOW), what the clock is wrong by (CLOCK), both in seconds, or how many steps the
    daemon does before it is killed (KILLED).
    """

    at: float
    seconds: float
    kind: SoakFault
    subject: str = ""
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class _Odds:
    """How often a fault comes in a day, how long it lasts, and its amount, each from a least to a most."""

    per_day: float
    seconds: tuple[float, float]
    amount: tuple[float, float] = (0.0, 0.0)


_ODDS: Final[Mapping[SoakFault, _Odds]] = {
    SoakFault.NODE_DOWN: _Odds(2.0, (30 * _MINUTE, 6 * _HOUR)),
    SoakFault.NODE_DRAINED: _Odds(2.0, (1 * _HOUR, 8 * _HOUR)),
    SoakFault.UNREACHABLE: _Odds(3.0, (1 * _MINUTE, 20 * _MINUTE)),
    SoakFault.SLOW: _Odds(3.0, (5 * _MINUTE, 1 * _HOUR), (2.0, 40.0)),
    SoakFault.HALF: _Odds(3.0, (5 * _MINUTE, 1 * _HOUR)),
    SoakFault.NO_ACCOUNTING: _Odds(1.0, (10 * _MINUTE, 3 * _HOUR)),
    SoakFault.LOCKED: _Odds(3.0, (1 * _MINUTE, 10 * _MINUTE)),
    SoakFault.FULL: _Odds(1.0, (1 * _MINUTE, 10 * _MINUTE)),
    SoakFault.READ_ONLY: _Odds(1.0, (1 * _MINUTE, 5 * _MINUTE)),
    SoakFault.CLOCK: _Odds(2.0, (10 * _MINUTE, 1 * _HOUR), (-2 * _HOUR, 2 * _HOUR)),
    SoakFault.KILLED: _Odds(6.0, (5.0, 5 * _MINUTE), (1, 60)),
}


def draw_faults(random: Random, nodes: Sequence[str], seconds: float) -> tuple[DrawnFault, ...]:
    """Return the faults of so many seconds, in order: each kind comes at exponential times, at least once."""
    drawn = list[DrawnFault]()
    for kind, odds in _ODDS.items():
        at = random.uniform(0.0, min(_DAY, seconds))
        while at < seconds:
            subject = random.choice(nodes) if kind in (SoakFault.NODE_DOWN, SoakFault.NODE_DRAINED) else ""
            drawn.append(DrawnFault(at, random.uniform(*odds.seconds), kind, subject, random.uniform(*odds.amount)))
            at += random.expovariate(odds.per_day / _DAY)
    return tuple(sorted(drawn, key=lambda fault: fault.at))


class KilledError(BaseException):
    """The process is gone: nothing may catch it."""


@dataclass(slots=True)
class SoakTime:
    """The true time, which sleeping moves, and what happens when its time has come.

    `offset` is what the clock of the daemon's host is wrong by. `steps_left` counts down to the kill of the process;
    once it is below 0 nothing of the process does anything any more.
    """

    clock: VirtualClock
    offset: float = 0.0
    steps_left: int | None = None
    counting: bool = False
    _happenings: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _turns: count[int] = field(default_factory=count)
    _thread: int = field(default_factory=get_ident)

    def at(self, time: float, happens: Callable[[], None]) -> None:
        """Have this happen at a time of the true clock, or at once if it has passed."""
        heappush(self._happenings, (time, next(self._turns), happens))

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass, with what happens in them; where another thread sleeps, as in a poll, that happens
        when this one sleeps next, to which the database belongs."""
        end = self.clock.now() + max(seconds, 0.0)
        while get_ident() == self._thread and self._happenings and self._happenings[0][0] <= end:
            at, _, happens = heappop(self._happenings)
            self.clock.advance_to(max(at, self.clock.now()))
            happens()
        self.clock.advance_to(max(end, self.clock.now()))

    def step(self) -> None:
        """One step of the process. Raises KilledError for the one at which it is killed, and for all after it."""
        if self.steps_left is not None and self.counting:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise KilledError

    def revive(self) -> None:
        """A new process."""
        self.steps_left, self.counting = None, False


@dataclass(frozen=True, slots=True)
class DaemonClock:
    """The clock of the daemon's host, which is set wrong at times. `sleeps` is called before each sleep."""

    time: SoakTime
    sleeps: Callable[[], None]

    def now(self) -> float:
        self.time.step()
        return self.time.clock.now() + self.time.offset

    def monotonic(self) -> float:
        return self.time.clock.now()

    def sleep(self, seconds: float) -> None:
        self.time.step()
        self.sleeps()
        self.time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Executed:
    """An operation that the cluster was asked for, at a time of the true clock, and whether it did it."""

    at: float
    verb: Verb
    subject: str
    done: bool


_NO_ANSWER: Final = "slurmctld does not answer: wait and try again"


@dataclass(slots=True)
class FaultyBackend:
    """The simulated cluster behind a slurmctld that has the faults in `active`. `executed` is what it did, the truth;
    `accounted` is when accounting answered last, by the true clock.

    An operation whose answer is lost was carried out all the same.
    """

    simulated: SimulatedBackend
    time: SoakTime
    random: Random
    active: dict[SoakFault, float] = field(default_factory=dict)
    executed: deque[Executed] = field(default_factory=deque)
    accounted: float = 0.0
    _polled_at: float | None = None
    _waited: float = 0.0
    name: str = "simulated"
    remarks: tuple[str, ...] = ()
    operation_seconds: float = 0.0

    @property
    def calls(self) -> CallCounts:
        return self.simulated.calls

    def observe(self) -> Snapshot:
        """Poll. Raises UnreachableError."""
        self.time.counting = True
        self._polled_at = process_time() if self._polled_at is None else self._polled_at
        self._answer()
        return self._outside(self.simulated.observe)

    def activity(self) -> str:
        return "" if SoakFault.UNREACHABLE in self.active else self.simulated.activity()

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        """Raises BackendError."""
        self.time.step()
        if SoakFault.NO_ACCOUNTING in self.active or SoakFault.UNREACHABLE in self.active:
            raise BackendError("accounting does not answer")
        self.accounted = self.time.clock.now()
        return self._outside(lambda: self.simulated.finished_runs(since, until))

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        """Raises UnreachableError."""
        self._answer()
        return self._outside(lambda: self.simulated.origins(jobs))

    def identity(self) -> Identity:
        return self.simulated.identity()

    def commands(self, operation: Operation) -> tuple[str, ...]:
        return self.simulated.commands(operation)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Carry out the operations one by one; the process may be killed between any two.

        Raises UnreachableError, after the first of them where slurmctld answers half.
        """
        self._answer()
        half = self.random.randint(0, len(operations)) if SoakFault.HALF in self.active else len(operations)
        outcomes = list[Outcome]()
        for operation in operations[:half]:
            self.time.step()
            (outcome,) = self._outside(partial(self.simulated.execute, [operation]))
            done = outcome.result is Result.DONE
            self.executed.append(Executed(self.time.clock.now(), operation.verb, operation.subject, done))
            outcomes.append(outcome)
        self.time.step()
        if half < len(operations):
            raise UnreachableError(_NO_ANSWER)
        return tuple(outcomes)

    def round_took(self) -> float | None:
        """Return the processor seconds of the daemon since its first poll after the last call; None without a poll."""
        if self._polled_at is None:
            return None
        took = process_time() - self._polled_at - self._waited
        self._polled_at, self._waited = None, 0.0
        return took

    def _answer(self) -> None:
        """Let the time pass that an answer takes. Raises UnreachableError."""
        self.time.step()
        if SoakFault.UNREACHABLE in self.active:
            self.time.sleep(10.0)  # the time limit of a command
            raise UnreachableError(_NO_ANSWER)
        if SoakFault.SLOW in self.active:
            self.time.sleep(self.active[SoakFault.SLOW])
        if SoakFault.HALF in self.active and self.random.random() < _ODDS_OF_NO_ANSWER:
            raise UnreachableError(_NO_ANSWER)

    def _outside(self, call: Callable[[], T]) -> T:
        """What the cluster answers; what that takes is no time of the daemon's."""
        began = process_time()
        try:
            return call()
        finally:
            self._waited += process_time() - began


_ODDS_OF_NO_ANSWER: Final = 0.25
"""Of a call while slurmctld answers half."""
