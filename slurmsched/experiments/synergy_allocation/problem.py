"""Jobs, servers and grants of a round, and the variants of the paper (Synergy, sections 3.2 and 4.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PerGpu = tuple[float, float]
"""CPUs and memory (GB, as in the paper) per GPU."""

ServerGpus = tuple[int, int]
"""A server's index and a number of its GPUs."""


@dataclass(frozen=True, slots=True)
class SynergyJob:
    """One runnable job. `fair` is the GPU-proportional share, `best_case` its best-case demand (section 3.2).

    `speed_points` are the points of its matrix up to that demand: CPUs and memory per GPU, and the speed with them.
    """

    job_id: int
    gpus: int
    fair: PerGpu
    best_case: PerGpu
    speed_points: tuple[tuple[float, float, float], ...] = ()

    def speed_at(self, each: PerGpu) -> float:
        """Returns the speed of the fastest point that needs at most `each`; 0 if there is none."""
        reached = (speed for cpus, memory, speed in self.speed_points if cpus <= each[0] and memory <= each[1])
        return max(reached, default=0.0)

    @property
    def exceeds_fair_share(self) -> bool:
        """Whether its demand exceeds its proportional share in CPUs or memory."""
        return self.best_case[0] > self.fair[0] or self.best_case[1] > self.fair[1]


@dataclass(slots=True)
class SynergyGrant:
    """A job's allocation for one round, with the same CPUs and memory for each GPU, so that no worker waits for another
    (section 4.2).

    `reverted`: its demand was cut to the proportional share. `replaced`: it was cut for another job.
    """

    job: SynergyJob
    gpus_by_server: tuple[ServerGpus, ...]
    per_gpu: PerGpu
    reverted: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class SynergyVariant:
    """An interpretation of Synergy. Each field says what is done if it is true."""

    consolidates: bool
    """A job gets as few servers as possible, and of these the fullest that fit (section 4.2). Else it gets the first
    GPUs, server by server, for which its CPUs and memory are free."""
    sorts_by_demand: bool
    """Jobs are placed in descending order of GPUs, CPUs and memory (section 4.2). Else in the policy's order."""
    cuts_only_excess: bool
    """A cut reduces only the resource that exceeds the proportional share. Else CPUs and memory both become the
    proportional share, even if that is more."""
    cuts_only_needed: bool
    """Only as many jobs are cut as needed. Else jobs on the server are cut in order, those with the most CPUs first,
    until enough is free."""
    uses_matrix_speed: bool
    """Speed is taken from the sensitivity matrix. Else it is the speed-up with the whole best-case demand, and that of
    the proportional share with less."""
    distributes_spare: bool
    """Spare CPUs and memory of a server finally go to jobs that run faster with them."""
    whole_iterations: bool
    """A round counts whole iterations at its start, and a job ends at the end of a round. Else work is continuous, and
    a job may end within a round."""


PAPER: Final = SynergyVariant(
    consolidates=True,
    sorts_by_demand=True,
    cuts_only_excess=True,
    cuts_only_needed=True,
    uses_matrix_speed=True,
    distributes_spare=False,
    whole_iterations=False,
)
"""As in the paper's text."""

AUTHORS: Final = SynergyVariant(
    consolidates=False,
    sorts_by_demand=False,
    cuts_only_excess=False,
    cuts_only_needed=False,
    uses_matrix_speed=False,
    distributes_spare=False,
    whole_iterations=True,
)
"""As in the authors' simulator (msr-fiddle/synergy, commit 1bb2bed, the schedulers without `+place`)."""

OURS: Final = SynergyVariant(
    consolidates=False,
    sorts_by_demand=False,
    cuts_only_excess=True,
    cuts_only_needed=True,
    uses_matrix_speed=True,
    distributes_spare=True,
    whole_iterations=False,
)
"""The combination that measured best: the authors' packing in the policy's order, which mixes large and small demands
on a server; the paper's minimal cuts; and distribution of spare resources."""


@dataclass(slots=True)
class FreeServers:
    """Free GPUs, CPUs and memory (GB) by server. At these sizes lists are faster than arrays."""

    gpus: list[int]
    cpus: list[float]
    memory: list[float]

    @classmethod
    def uniform(cls, count: int, gpus: int, cpus: float, memory: float) -> FreeServers:
        """Returns `count` equal, empty servers."""
        return cls([gpus] * count, [cpus] * count, [memory] * count)

    def gpus_available(self, server: int, each: PerGpu, most: int) -> int:
        """Returns the GPUs, at most `most`, that a server can give with `each` CPUs and memory per GPU."""
        cpus, memory = each
        count = min(most, self.gpus[server])
        while count and (cpus * count > self.cpus[server] or memory * count > self.memory[server]):
            count -= 1
        return count

    def allocate(self, gpus_by_server: Iterable[ServerGpus], each: PerGpu) -> None:
        for server, gpus in gpus_by_server:
            self.gpus[server] -= gpus
            self.cpus[server] -= gpus * each[0]
            self.memory[server] -= gpus * each[1]

    def release(self, gpus_by_server: Iterable[ServerGpus], each: PerGpu) -> None:
        self.allocate(((server, -gpus) for server, gpus in gpus_by_server), each)
