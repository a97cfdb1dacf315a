"""Slurm's own order."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import Ranked
from slurmsched.policies.ordering.sorting import nobody, ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["SlurmPriority"]


@dataclass(frozen=True, slots=True)
class SlurmPriority:
    """By the priority Slurm gave, highest first. Nobody is displaced."""

    name: str = "priority"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        return ranked(situation, lambda job: (-job.priority,), lambda job: f"priority {job.priority}")

    def outranks(self, situation: Situation) -> Outranks:  # noqa: ARG002 as the protocol has it
        return nobody
