"""The virtual clock, the event queue, and planned faults."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal


class SimulatedEventKind(StrEnum):
    """The kinds of events of the virtual cluster."""

    SUBMITTED = "submitted"
    ELIGIBLE = "begins"
    """A begin time, or the start or end of a reservation, has come: schedule again."""
    WORK_DONE = "finishes"
    COPIES_MEET = "copies_meet"
    """The copies of a forked job, the array `subject`, may have to end their round or begin the next."""
    TIME_LIMIT = "time_limit"
    CHECKPOINTED = "checkpointed"
    RESOURCES_FREED = "vacates"
    """A completing job releases its resources."""
    PURGED = "forgotten"
    """Slurm forgets a finished job (MinJobAge)."""
    CANCELLED = "cancelled"
    NODE_DOWN = "node_down"
    NODE_DRAINED = "node_drained"
    NODE_UP = "node_up"


@dataclass(frozen=True, slots=True)
class Event:
    """An event at a time in unix seconds. `subject` is a job, an array or a node.

    An event with a `run_number` is ignored if the job's run number is another by then.
    """

    time: float
    kind: SimulatedEventKind
    subject: str = ""
    run_number: int | None = None


class EventQueue:
    """Events by time; events of the same time in the order in which they were pushed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._pushed = 0

    def push(self, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (event.time, self._pushed, event))

    @property
    def next_time(self) -> float | None:
        """The time of the next event, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, until: float) -> Event | None:
        """Removes and returns the next event that is due by `until`, None if there is none."""
        if not self._heap or self._heap[0][0] > until:
            return None
        return heapq.heappop(self._heap)[2]


class VirtualClock:
    """A clock in unix seconds that only `advance`, `advance_to` and `sleep` move."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Unix seconds."""
        return self._now

    def monotonic(self) -> float:
        """Unix seconds too, as this clock never goes back."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock forward by `seconds`. Raises ValueError if negative."""
        self.advance_to(self._now + seconds)

    def advance_to(self, time: float) -> None:
        """Sets the clock to `time`. Raises ValueError for a time in the past."""
        if time < self._now:
            raise ValueError(f"the clock stands at {self._now:g} and cannot go back to {time:g}")
        self._now = time

    def sleep(self, seconds: float) -> None:
        """Moves the clock forward without waiting."""
        self.advance(max(seconds, 0.0))


FaultKind = Literal[
    SimulatedEventKind.NODE_DOWN,
    SimulatedEventKind.NODE_DRAINED,
    SimulatedEventKind.NODE_UP,
    SimulatedEventKind.CANCELLED,
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A node goes down, is drained or comes back; a job is cancelled by its owner."""

    kind: FaultKind
    subject: str


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """When faults happen. Polls and executions of a backend are numbered from 1.

    `timed` faults happen at unix seconds, `before_execution` right before that execution, after the plan was made.
    `unanswered_polls` raise UnreachableError. An execution in `interrupted_executions` raises it after that many
    operations.
    """

    timed: tuple[tuple[float, Fault], ...] = ()
    before_execution: Mapping[int, tuple[Fault, ...]] = field(default_factory=dict)
    unanswered_polls: frozenset[int] = frozenset()
    interrupted_executions: Mapping[int, int] = field(default_factory=dict)


NO_FAULTS: Final = FaultPlan()
