"""What is free on the servers while a round is packed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurmsched.policies.synergy.asking import PerGpu, Seat

__all__ = ["Servers"]


@dataclass(slots=True)
class Servers:
    """Free GPUs, CPUs and memory (GB), server by server. Lists of Python numbers: at these sizes they beat arrays."""

    gpus: list[int]
    cpus: list[float]
    memory: list[float]

    @classmethod
    def equal(cls, count: int, gpus: int, cpus: float, memory: float) -> Servers:
        """So many empty servers of one kind."""
        return cls([gpus] * count, [cpus] * count, [memory] * count)

    def room(self, server: int, each: PerGpu, most: int) -> int:
        """GPUs a server can give, up to `most`, with so much beside each."""
        cpus, memory = each
        count = min(most, self.gpus[server])
        while count and (cpus * count > self.cpus[server] or memory * count > self.memory[server]):
            count -= 1
        return count

    def take(self, seats: Iterable[Seat], each: PerGpu) -> None:
        for server, gpus in seats:
            self.gpus[server] -= gpus
            self.cpus[server] -= gpus * each[0]
            self.memory[server] -= gpus * each[1]

    def give_back(self, seats: Iterable[Seat], each: PerGpu) -> None:
        self.take(((server, -gpus) for server, gpus in seats), each)
