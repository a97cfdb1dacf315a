"""Amounts of the three resources that are decided together."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Resources"]


@dataclass(frozen=True, slots=True)
class Resources:
    """GPUs, CPUs (as Slurm counts them) and memory in MiB, of a node, a job or a share."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.gpus + other.gpus, self.cpus + other.cpus, self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.gpus - other.gpus, self.cpus - other.cpus, self.memory - other.memory)

    def fits_in(self, other: Resources) -> bool:
        """Whether `other` holds at least this much of everything."""
        return self.gpus <= other.gpus and self.cpus <= other.cpus and self.memory <= other.memory
