"""Jobs, servers and grants of a round, and which variant of the paper is meant (Synergy, sections 3.2, 4.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PerGpu = tuple[float, float]
"""CPUs and memory (GB, as the paper counts) for each GPU."""

ServerGpus = tuple[int, int]
"""A server and how many of its GPUs."""


@dataclass(frozen=True, slots=True)
class SynergyJob:
    """One runnable job. `fair` is the GPU-proportional share, `best` its best-case demand (section 3.2).

    `ladder` are points of its matrix up to that demand: CPUs and memory per GPU, and the speed there.
    """

    job_id: int
    gpus: int
    fair: PerGpu
    best_case: PerGpu
    speed_points: tuple[tuple[float, float, float], ...] = ()

    def speed_at(self, each: PerGpu) -> float:
        """The fastest point of the ladder that so much reaches; 0 below all of them."""
        reached = (speed for cpus, memory, speed in self.speed_points if cpus <= each[0] and memory <= each[1])
        return max(reached, default=0.0)

    @property
    def exceeds_fair_share(self) -> bool:
        """Whether it wants more of anything than its proportional share."""
        return self.best_case[0] > self.fair[0] or self.best_case[1] > self.fair[1]


@dataclass(slots=True)
class SynergyGrant:
    """A job's place for one round. All its GPUs get the same, so that none of its workers waits for another
    (section 4.2): a job on several servers has CPUs and memory in proportion to the GPUs on each.

    `reverted`: its demand was cut to the proportional share. `replaced`: it was placed anew to make room.
    """

    job: SynergyJob
    gpus_by_server: tuple[ServerGpus, ...]
    per_gpu: PerGpu
    reverted: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class SynergyVariant:
    """One way to read Synergy. Each field says what is done when it is true."""

    consolidates: bool
    """A job goes where the least is free that is just enough, and onto as few servers as can be (section 4.2). Else it
    takes the first GPUs, server by server, beside which its share of CPUs and memory is free."""
    sorts_by_demand: bool
    """The runnable jobs are packed by GPUs, CPUs and memory, the largest first (section 4.2). Else in the policy's
    order."""
    cuts_only_excess: bool
    """A demand is cut to the proportional share only where it is above it. Else CPUs and memory both become the
    proportional share, be it more."""
    cuts_only_needed: bool
    """Jobs are reverted only as far as that frees what is needed. Else all jobs of a server are placed anew, the
    hungriest first, until it is."""
    uses_matrix_speed: bool
    """Speed is what the sensitivity matrix says of what a job has. Else one figure: the speed-up with the whole
    best-case demand, which anything less forfeits."""
    distributes_spare: bool
    """What is spare on a server in the end goes to jobs that run faster with it."""
    whole_iterations: bool
    """A round books whole iterations when it begins, and a job ends at a round's end. Else work is done as time
    passes, and a job ends when it is done."""


PAPER: Final = SynergyVariant(
    consolidates=True,
    sorts_by_demand=True,
    cuts_only_excess=True,
    cuts_only_needed=True,
    uses_matrix_speed=True,
    distributes_spare=False,
    whole_iterations=False,
)
"""As the text has it."""

AUTHORS: Final = SynergyVariant(
    consolidates=False,
    sorts_by_demand=False,
    cuts_only_excess=False,
    cuts_only_needed=False,
    uses_matrix_speed=False,
    distributes_spare=False,
    whole_iterations=True,
)
"""As the authors' simulator does it (msr-fiddle/synergy, commit 1bb2bed, the schedulers without `+place`)."""

OURS: Final = SynergyVariant(
    consolidates=False,
    sorts_by_demand=False,
    cuts_only_excess=True,
    cuts_only_needed=True,
    uses_matrix_speed=True,
    distributes_spare=True,
    whole_iterations=False,
)
"""What measured best of both: the authors' packing in the policy's order, which mixes hungry and frugal jobs on a
server; the paper's sparing cuts; and nothing left idle that makes somebody faster."""


@dataclass(slots=True)
class FreeServers:
    """Free GPUs, CPUs and memory (GB), server by server. Lists of Python numbers: at these sizes they beat arrays."""

    gpus: list[int]
    cpus: list[float]
    memory: list[float]

    @classmethod
    def uniform(cls, count: int, gpus: int, cpus: float, memory: float) -> FreeServers:
        """So many empty servers of one kind."""
        return cls([gpus] * count, [cpus] * count, [memory] * count)

    def gpus_available(self, server: int, each: PerGpu, most: int) -> int:
        """GPUs a server can give, up to `most`, with so much beside each."""
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
