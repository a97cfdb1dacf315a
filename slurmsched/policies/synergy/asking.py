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
    """One runnable job. `fair` is the GPU-proportional share, `best` its best-case demand (section 3.2).

    `ladder` are points of its matrix up to that demand: CPUs and memory per GPU, and the speed there.
    """

    job: int
    gpus: int
    fair: PerGpu
    best: PerGpu
    ladder: tuple[tuple[float, float, float], ...] = ()

    def speed_at(self, each: PerGpu) -> float:
        """The fastest point of the ladder that so much reaches; 0 below all of them."""
        reached = (speed for cpus, memory, speed in self.ladder if cpus <= each[0] and memory <= each[1])
        return max(reached, default=0.0)

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
