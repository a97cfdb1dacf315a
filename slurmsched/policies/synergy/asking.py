"""What a job asks of a round, and what it is granted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ask", "Grant", "PerGpu", "Seat"]

PerGpu = tuple[float, float]
"""CPUs and memory (GB, as the paper counts) for each GPU."""

Seat = tuple[int, int]
"""A server and how many of its GPUs."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One runnable job. `fair` is the GPU-proportional share, `best` its best-case demand (section 3.2)."""

    job: int
    gpus: int
    fair: PerGpu
    best: PerGpu

    @property
    def demanding(self) -> bool:
        """Whether it wants more of anything than its proportional share."""
        return self.best[0] > self.fair[0] or self.best[1] > self.fair[1]


@dataclass(slots=True)
class Grant:
    """A job's place for one round. All its GPUs get the same, so that none of its workers waits for another
    (section 4.2): a job on several servers has CPUs and memory in proportion to the GPUs on each.

    `reverted`: its demand was cut to the proportional share. `replaced`: it was placed anew to make room.
    """

    ask: Ask
    seats: tuple[Seat, ...]
    each: PerGpu
    reverted: bool = False
    replaced: bool = False
