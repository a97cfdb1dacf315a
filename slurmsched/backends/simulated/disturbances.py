"""What goes wrong, said beforehand: at a time, or between two steps of a round where no virtual time passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from slurmsched.backends.simulated.agenda import Happening

__all__ = ["CALM", "Disturbance", "Disturbances"]

Mishap = Literal[Happening.NODE_DOWN, Happening.NODE_DRAINED, Happening.NODE_UP, Happening.CANCELLED]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A node goes down, is drained or comes back; a job is cancelled by its owner."""

    kind: Mishap
    subject: str


@dataclass(frozen=True, slots=True)
class Disturbances:
    """A schedule of them. Polls and executions of a backend count from 1.

    `timed` happens at unix times; `before_execution` right before that execution, after the plan was made;
    `unanswered_polls` raise UnreachableError; `broken_off` are executions in which only so many operations are done
    before nobody answers any more.
    """

    timed: tuple[tuple[float, Disturbance], ...] = ()
    before_execution: Mapping[int, tuple[Disturbance, ...]] = field(default_factory=dict)
    unanswered_polls: frozenset[int] = frozenset()
    broken_off: Mapping[int, int] = field(default_factory=dict)


CALM: Final = Disturbances()
