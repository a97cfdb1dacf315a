"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import Ranked
from slurmsched.model.wording import span
from slurmsched.policies.ordering.sorting import nobody, ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["FirstInFirstOut"]


@dataclass(frozen=True, slots=True)
class FirstInFirstOut:
    """By submission. Nobody is displaced: a running job came first, or took GPUs that nobody before it could use."""

    name: str = "fifo"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        now = situation.snapshot.time
        return ranked(situation, lambda _: (), lambda job: f"submitted {span(max(0.0, now - job.submit_time))} ago")

    def outranks(self, situation: Situation) -> Outranks:  # noqa: ARG002 as the protocol has it
        return nobody
