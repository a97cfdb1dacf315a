"""What an allocation is made of, and what every way of allocating promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from slurmsched.policies.gang import Gang
from slurmsched.policies.pools import Kind

__all__ = ["Allocating", "Portion", "Step", "Terms", "memory_on_node", "proportional", "requested"]


@dataclass(frozen=True, slots=True)
class Portion:
    """CPUs and MiB for each part of a gang. CPUs are a multiple of the part's tasks."""

    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What a gang wants on nodes of one kind, and the least it accepts there."""

    best: Portion
    least: Portion


Step = tuple[Portion, float]
"""A larger portion, and how much faster than now it is, as a multiple of the speed at the proportional share."""


class Allocating(Protocol):
    """How CPUs and memory follow GPUs."""

    @property
    def name(self) -> str:
        """As people choose it: `tune`."""

    def terms(self, gang: Gang, kind: Kind) -> Terms:
        """What the gang wants and the least it takes on nodes of this kind."""

    def larger(self, gang: Gang, kind: Kind, have: Portion, most: Portion) -> Iterator[Step]:
        """Portions above `have` and up to `most` that would make the gang faster; none where more is of no use."""


def proportional(gang: Gang, kind: Kind) -> Portion:
    """The GPU-proportional share of each part, whole CPUs for each task, rounded down but never below one a task."""
    cpus = kind.cpus * gang.gpus // kind.gpus
    return Portion(max(cpus // gang.tasks, 1) * gang.tasks, kind.memory * gang.gpus // kind.gpus)


def requested(gang: Gang, kind: Kind) -> Portion:
    """What the owner asked for; where nothing was said of memory, or it may shrink, no more than the share of it."""
    cpus = -(-gang.request.cpus // gang.parts)
    share, asked = proportional(gang, kind).memory, -(-gang.request.memory * gang.fewest // gang.parts)
    memory = min(asked, share) if asked else share
    return Portion(-(-cpus // gang.tasks) * gang.tasks, 0 if gang.memory else memory)


def memory_on_node(gang: Gang, portion: Portion, parts: int) -> int:
    """MiB a node gives when it holds at most so many parts: Slurm knows one amount for all nodes of a job."""
    return max(gang.memory, portion.memory * parts)
