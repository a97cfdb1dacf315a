"""How Slurm rounds the CPUs of a job on a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from slurmsched.arrays import Ints

Amount = TypeVar("Amount", int, Ints)
"""A number of CPUs, or one for each pool."""


@dataclass(frozen=True, slots=True)
class CpuUnits(Generic[Amount]):
    """How Slurm rounds the CPUs of a job on a node: this is the one place where a request becomes what is charged.

    CPUs are given in units of `unit`, which are cores or sockets, and a job counts `usable` of each: fewer where it
    asks for one thread of each core. Its memory per CPU is counted for multiples of `billed`. Measured on 26.05: on
    nodes of two threads per core `-c 3` is charged 4 CPUs and the memory of 4, with `--threads-per-core=1` 6 and the
    memory of 3; with CR_CPU it takes the same cores, but the memory of 3.
    """

    unit: Amount
    usable: Amount
    billed: Amount

    def charged(self, cpus: Amount) -> Amount:
        """Return the CPUs of a node that a job takes which asks for so many there."""
        return -(-cpus // self.usable) * self.unit

    def counted(self, cpus: Amount) -> Amount:
        """Return the CPUs by which the memory per CPU of such a job is counted."""
        return -(-cpus // self.billed) * self.billed

    def within(self, free: Amount) -> Amount:
        """Return the most CPUs that a job can ask for where so many of the node are free."""
        return free // self.unit * self.usable

    def with_memory_for(self, cpus: Amount) -> Amount:
        """Return the most CPUs that a job can ask for where there is memory for so many."""
        return cpus // self.billed * self.billed
