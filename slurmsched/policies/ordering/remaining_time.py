"""Shortest remaining time first (Synergy, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import Job, Ranked
from slurmsched.model.wording import span
from slurmsched.policies.ordering.sorting import ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["ShortestRemainingTime"]


@dataclass(frozen=True, slots=True)
class ShortestRemainingTime:
    """By what is left of the duration its owner expects, or else of its time limit; unknown comes last.

    A newcomer displaces only a job that has at least `clearly` times as long to go. As it runs it has less and less to
    go, so the two do not swap back.
    """

    clearly: float = 2.0
    name: str = "srtf"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        remaining = situation.knowledge.remaining
        return ranked(situation, lambda job: (remaining(job),), lambda job: f"{span(remaining(job))} to go")

    def outranks(self, situation: Situation) -> Outranks:
        remaining = situation.knowledge.remaining

        def shorter(newcomer: Job, running: Job) -> bool:
            own, other = remaining(newcomer), remaining(running)
            return own < other and own * self.clearly <= other

        return shorter
