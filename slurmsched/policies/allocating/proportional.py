"""GPU-proportional allocation (Synergy, section 2), as most schedulers for deep learning do it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmsched.policies.allocating.portion import Portion, Step, Terms, proportional
from slurmsched.policies.gang import Gang
from slurmsched.policies.pools import Kind

__all__ = ["Proportional"]


@dataclass(frozen=True, slots=True)
class Proportional:
    """CPUs and memory by the number of GPUs; memory never below what the owner asked."""

    name: str = "proportional"

    def terms(self, gang: Gang, kind: Kind) -> Terms:
        portion = proportional(gang, kind)
        return Terms(portion, portion)

    def larger(self, gang: Gang, kind: Kind, have: Portion, most: Portion) -> Iterator[Step]:  # noqa: ARG002 see above
        return iter(())
