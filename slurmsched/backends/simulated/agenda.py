"""What is going to happen, in order of time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Agenda", "Event", "Happening"]


class Happening(StrEnum):
    """The kinds of events of the virtual cluster."""

    SUBMITTED = "submitted"
    BEGINS = "begins"
    """A begin time or a reservation's edge has come: look at the queue again."""
    FINISHES = "finishes"
    TIME_LIMIT = "time_limit"
    CHECKPOINTED = "checkpointed"
    VACATES = "vacates"
    """A completing job gives its resources back."""
    FORGOTTEN = "forgotten"
    """A finished job leaves Slurm's memory."""
    CANCELLED = "cancelled"
    NODE_DOWN = "node_down"
    NODE_DRAINED = "node_drained"
    NODE_UP = "node_up"


@dataclass(frozen=True, slots=True)
class Event:
    """Something at a time. `subject` is a job or a node; an event of a job's run is void once `run` is over."""

    at: float
    kind: Happening
    subject: str = ""
    run: int | None = None


class Agenda:
    """Events by time; those of one instant in the order they were entered."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._entered = 0

    def enter(self, event: Event) -> None:
        self._entered += 1
        heapq.heappush(self._heap, (event.at, self._entered, event))

    @property
    def next_time(self) -> float | None:
        """When the next event is due, None when nothing is going to happen."""
        return self._heap[0][0] if self._heap else None

    def take(self, until: float) -> Event | None:
        """The next event that is due by `until`."""
        if not self._heap or self._heap[0][0] > until:
            return None
        return heapq.heappop(self._heap)[2]
