"""Synergy-Greedy (section 4.1.3; called naive in section 5.4): the best-case demand or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmsched.policies.allocating.portion import Portion, Step, Terms
from slurmsched.policies.allocating.tune import Tune
from slurmsched.policies.gang import Gang
from slurmsched.policies.pools import Kind

__all__ = ["Greedy"]


@dataclass(frozen=True, slots=True)
class Greedy:
    """A job waits until all that makes it fastest is free on its nodes, though its GPUs were free before."""

    name: str = "greedy"

    def terms(self, gang: Gang, kind: Kind) -> Terms:
        best = Tune().terms(gang, kind).best
        return Terms(best, best)

    def larger(self, gang: Gang, kind: Kind, have: Portion, most: Portion) -> Iterator[Step]:  # noqa: ARG002 see above
        return iter(())
