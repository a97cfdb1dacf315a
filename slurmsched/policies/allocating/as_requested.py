"""What the owner asked for, as Slurm itself gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmsched.policies.allocating.portion import Portion, Step, Terms, requested
from slurmsched.policies.gang import Gang
from slurmsched.policies.pools import Kind

__all__ = ["AsRequested"]


@dataclass(frozen=True, slots=True)
class AsRequested:
    """CPUs and memory as submitted, nothing else."""

    name: str = "as requested"

    def terms(self, gang: Gang, kind: Kind) -> Terms:
        portion = requested(gang, kind)
        return Terms(portion, portion)

    def larger(self, gang: Gang, kind: Kind, have: Portion, most: Portion) -> Iterator[Step]:  # noqa: ARG002 see above
        return iter(())
