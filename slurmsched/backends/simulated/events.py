"""The virtual clock, the queue of events by time, and faults planned beforehand."""

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
    """A begin time or a reservation's edge has come: look at the queue again."""
    WORK_DONE = "finishes"
    TIME_LIMIT = "time_limit"
    CHECKPOINTED = "checkpointed"
    RESOURCES_FREED = "vacates"
    """A completing job gives its resources back."""
    PURGED = "forgotten"
    """A finished job leaves Slurm's memory."""
    CANCELLED = "cancelled"
    NODE_DOWN = "node_down"
    NODE_DRAINED = "node_drained"
    NODE_UP = "node_up"


@dataclass(frozen=True, slots=True)
class Event:
    """Something at a time. `subject` is a job or a node; an event of a job's run is void once `run` is over."""

    time: float
    kind: SimulatedEventKind
    subject: str = ""
    run_number: int | None = None


class EventQueue:
    """Events by time; those of one instant in the order they were entered."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._pushed = 0

    def push(self, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (event.time, self._pushed, event))

    @property
    def next_time(self) -> float | None:
        """When the next event is due, None when nothing is going to happen."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, until: float) -> Event | None:
        """The next event that is due by `until`."""
        if not self._heap or self._heap[0][0] > until:
            return None
        return heapq.heappop(self._heap)[2]


class VirtualClock:
    """Unix seconds that pass by `advance` and `sleep` alone; the cluster catches up with it when it is looked at."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Unix seconds."""
        return self._now

    def monotonic(self) -> float:
        """The same seconds: this clock is never set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Raises ValueError for a negative time."""
        self.advance_to(self._now + seconds)

    def advance_to(self, time: float) -> None:
        """Raises ValueError for a time that has passed."""
        if time < self._now:
            raise ValueError(f"the clock stands at {self._now:g} and cannot go back to {time:g}")
        self._now = time

    def sleep(self, seconds: float) -> None:
        """As the daemon's clock has it: nobody waits, the time is simply later."""
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
    """A schedule of them. Polls and executions of a backend count from 1.

    `timed` happens at unix times; `before_execution` right before that execution, after the plan was made;
    `unanswered_polls` raise UnreachableError; `broken_off` are executions in which only so many operations are done
    before nobody answers any more.
    """

    timed: tuple[tuple[float, Fault], ...] = ()
    before_execution: Mapping[int, tuple[Fault, ...]] = field(default_factory=dict)
    unanswered_polls: frozenset[int] = frozenset()
    interrupted_executions: Mapping[int, int] = field(default_factory=dict)


NO_FAULTS: Final = FaultPlan()
