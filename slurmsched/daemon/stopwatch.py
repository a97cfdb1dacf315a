"""How long deciding takes, told apart from planning."""

from __future__ import annotations

from slurmsched.daemon.clock import Clock
from slurmsched.model import Decision
from slurmsched.policies.protocol import Situation, System

__all__ = ["Timed"]


class Timed:
    """A system that decides like another; `seconds` is how long the last decision took."""

    def __init__(self, system: System, clock: Clock) -> None:
        self._system = system
        self._clock = clock
        self.seconds = 0.0

    @property
    def name(self) -> str:
        return self._system.name

    def decide(self, situation: Situation) -> Decision:
        """What the other decides."""
        began = self._clock.monotonic()
        decision = self._system.decide(situation)
        self.seconds = self._clock.monotonic() - began
        return decision
