"""Synergy's mechanisms as published (Mohan et al., OSDI 2022, sections 3.2 and 4): proportional, greedy and tune.

Every round places all jobs on empty servers. They are what the paper measured, and the baseline for the policies in
`slurmsched.policies`, which keep leases and pay for restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
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


def find_gpus(gpus: int, each: PerGpu, servers: FreeServers, variant: SynergyVariant) -> tuple[ServerGpus, ...] | None:
    """Returns GPUs with `each` CPUs and memory per GPU, or None if the job does not fit."""
    return _fewest_servers(gpus, each, servers) if variant.consolidates else _first_gpus(gpus, each, servers)


def _first_gpus(gpus: int, each: PerGpu, servers: FreeServers) -> tuple[ServerGpus, ...] | None:
    """Returns the first GPUs that fit, in the servers' order."""
    cpus, memory = each
    if gpus == 1:
        for server, free in enumerate(servers.gpus):
            if free and servers.cpus[server] >= cpus and servers.memory[server] >= memory:
                return ((server, 1),)
        return None
    gpus_by_server: list[ServerGpus] = []
    for server in range(len(servers.gpus)):
        count = servers.gpus_available(server, each, gpus)
        if count:
            gpus_by_server.append((server, count))
            gpus -= count
            if not gpus:
                return tuple(gpus_by_server)
    return None


def _fewest_servers(gpus: int, each: PerGpu, servers: FreeServers) -> tuple[ServerGpus, ...] | None:
    """Returns GPUs on the fullest server that fits, or else on as few servers as possible."""
    cpus, memory = each[0] * gpus, each[1] * gpus
    best, least = -1, (0, 0.0, 0.0)
    for server, free in enumerate(servers.gpus):
        if free >= gpus and servers.cpus[server] >= cpus and servers.memory[server] >= memory:
            left = (free, servers.cpus[server], servers.memory[server])
            if best < 0 or left < least:
                best, least = server, left
    if best >= 0:
        return ((best, gpus),)
    return _split(gpus, each, servers) if gpus > 1 else None


def _split(gpus: int, each: PerGpu, servers: FreeServers) -> tuple[ServerGpus, ...] | None:
    """Returns GPUs on the emptiest servers, and the rest on the fullest server that fits it."""
    available = sorted(
        ((servers.gpus_available(server, each, gpus), -server) for server in range(len(servers.gpus))), reverse=True
    )
    gpus_by_server: list[ServerGpus] = []
    for index, (count, server) in enumerate(available):
        if count == 0:
            return None
        if count >= gpus:
            _, fullest = min((count, -server) for count, server in available[index:] if count >= gpus)
            return (*gpus_by_server, (fullest, gpus))
        gpus_by_server.append((-server, count))
        gpus -= count
    return None


def place_greedy(jobs: Sequence[SynergyJob], servers: FreeServers, variant: SynergyVariant) -> list[SynergyGrant]:
    """Skips jobs whose best-case demand does not fit, so that GPUs may stay idle. Changes `servers`."""
    grants: list[SynergyGrant] = []
    left = sum(servers.gpus)
    for job in jobs:
        if job.gpus > left:
            continue
        gpus_by_server = find_gpus(job.gpus, job.best_case, servers, variant)
        if gpus_by_server is not None:
            servers.allocate(gpus_by_server, job.best_case)
            left -= job.gpus
            grants.append(SynergyGrant(job, gpus_by_server, job.best_case))
    return grants


def place_proportional(jobs: Sequence[SynergyJob], servers: FreeServers, variant: SynergyVariant) -> list[SynergyGrant]:
    """Gives every job the proportional share; leaves out jobs that do not fit. Changes `servers`."""
    grants: list[SynergyGrant] = []
    for job in jobs:
        gpus_by_server = find_gpus(job.gpus, job.fair, servers, variant)
        if gpus_by_server is not None:
            servers.allocate(gpus_by_server, job.fair)
            grants.append(SynergyGrant(job, gpus_by_server, job.fair, reverted=True))
    return grants


_Excess = tuple[float, float]
"""CPUs and memory on one server above the proportional share."""


def select_victims(
    server: int, missing: PerGpu, residents: list[SynergyGrant], variant: SynergyVariant
) -> list[SynergyGrant]:
    """Returns the jobs on the server to cut so that `missing` becomes free, or all that help if that is not enough.

    Sorts `residents`: jobs on fewer servers first, then those with most CPUs, then most memory per GPU.
    """
    if missing == (0.0, 0.0):
        return []
    residents.sort(key=lambda grant: (len(grant.gpus_by_server), -grant.per_gpu[0], -grant.per_gpu[1]))
    if variant.cuts_only_needed:
        return _minimal_victims(server, missing, residents)
    chosen: list[SynergyGrant] = []
    for grant in residents:
        chosen.append(grant)
        cpus, memory = _excess(server, grant)
        missing = max(0.0, missing[0] - cpus), max(0.0, missing[1] - memory)
        if missing == (0.0, 0.0):
            break
    return chosen


def _minimal_victims(server: int, missing: PerGpu, residents: Sequence[SynergyGrant]) -> list[SynergyGrant]:
    """Returns the job with the least excess that covers `missing` alone; else the first jobs that cover it together,
    without those that are not needed."""
    excess = [(_excess(server, grant), grant) for grant in residents]
    alone = [(spare[0], spare[1], index) for index, (spare, _) in enumerate(excess) if _covers(spare, missing)]
    if alone:
        return [excess[min(alone)[2]][1]]
    chosen: list[tuple[_Excess, SynergyGrant]] = []
    for spare, grant in excess:
        if (spare[0] and missing[0]) or (spare[1] and missing[1]):
            chosen.append((spare, grant))
            if _covers(_sum(chosen), missing):
                break
    for entry in tuple(chosen):
        others = [other for other in chosen if other is not entry]
        if _covers(_sum(others), missing):
            chosen = others
    return [grant for _, grant in chosen]


def _excess(server: int, grant: SynergyGrant) -> _Excess:
    gpus = next(gpus for index, gpus in grant.gpus_by_server if index == server)
    fair = grant.job.fair
    return max(0.0, gpus * (grant.per_gpu[0] - fair[0])), max(0.0, gpus * (grant.per_gpu[1] - fair[1]))


def _covers(excess: _Excess, missing: PerGpu) -> bool:
    return excess[0] >= missing[0] and excess[1] >= missing[1]


def _sum(chosen: Sequence[tuple[_Excess, SynergyGrant]]) -> _Excess:
    return sum(spare[0] for spare, _ in chosen), sum(spare[1] for spare, _ in chosen)


_Step = tuple[float, int, PerGpu]
"""Negative gain, so that the largest comes first; index among the server's jobs; CPUs and memory per GPU."""


def distribute_spare(server: int, residents: Iterable[SynergyGrant], servers: FreeServers) -> None:
    """Gives the server's free CPUs and memory to jobs on this server only, as far as they get faster."""
    alone = [grant for grant in residents if len(grant.gpus_by_server) == 1]
    steps = [
        step for index, grant in enumerate(alone) if (step := _best_step(index, grant, server, servers)) is not None
    ]
    heapify(steps)
    while steps:
        _, index, each = heappop(steps)
        grant = alone[index]
        servers.release(grant.gpus_by_server, grant.per_gpu)
        if servers.gpus_available(server, each, grant.job.gpus) == grant.job.gpus:
            grant.per_gpu = each
        servers.allocate(grant.gpus_by_server, grant.per_gpu)
        if (step := _best_step(index, grant, server, servers)) is not None:
            heappush(steps, step)


def _best_step(index: int, grant: SynergyGrant, server: int, servers: FreeServers) -> _Step | None:
    """Returns the step that fits and gains the job the most speed per resource, or None."""
    gpus, (cpus, memory) = grant.job.gpus, grant.per_gpu
    limit = cpus + servers.cpus[server] / gpus, memory + servers.memory[server] / gpus
    now = grant.job.speed_at(grant.per_gpu)
    best: _Step | None = None
    for more_cpus, more_memory, speed in grant.job.speed_points:
        wanted = max(cpus, more_cpus), max(memory, more_memory)
        if speed <= now or wanted[0] > limit[0] or wanted[1] > limit[1]:
            continue
        part = (wanted[0] - cpus) / max(grant.job.fair[0], 1e-9) + (wanted[1] - memory) / max(grant.job.fair[1], 1e-9)
        step = (-(speed - now) / max(part, 1e-9), index, wanted)
        best = step if best is None else min(best, step)
    return best


def place_tune(jobs: Sequence[SynergyJob], servers: FreeServers, variant: SynergyVariant) -> list[SynergyGrant]:
    """Places every job for which there are GPUs, with at least as much as the proportional share is worth to it.

    Tries the best-case demand, then that cut to the proportional share, then the same after cutting jobs on the server
    that exceed their share. Leaves out jobs without GPUs. Changes `servers`.
    """
    if variant.sorts_by_demand:
        jobs = sorted(
            jobs, key=lambda job: (-job.gpus, -job.gpus * job.best_case[0], -job.gpus * job.best_case[1], job.job_id)
        )
    round_ = _TuneRound(servers, variant)
    for job in jobs:
        round_.place(job)
    if variant.distributes_spare:
        round_.distribute_spare()
    return list(round_.grants.values())


class _TuneRound:
    """The jobs placed so far, in total and by server."""

    def __init__(self, servers: FreeServers, variant: SynergyVariant) -> None:
        self.grants: dict[int, SynergyGrant] = {}
        self._servers = servers
        self._reading = variant
        self._residents: list[list[SynergyGrant]] = [[] for _ in servers.gpus]

    def place(self, job: SynergyJob) -> None:
        cut = self._cut(job)
        if self._try_place(job, job.best_case, reverted=False):
            return
        if job.exceeds_fair_share and self._try_place(job, cut, reverted=True):
            return
        for server, gpus in self._short_of_cpus_or_memory(job.gpus):
            missing = self._missing(server, gpus, cut)
            for victim in select_victims(server, missing, self._residents[server], self._reading):
                self._replace(victim)
        self._try_place(job, cut, reverted=job.exceeds_fair_share)

    def distribute_spare(self) -> None:
        for server, residents in enumerate(self._residents):
            distribute_spare(server, residents, self._servers)

    def _cut(self, job: SynergyJob) -> PerGpu:
        if not job.exceeds_fair_share:
            return job.best_case
        if self._reading.cuts_only_excess:
            return min(job.best_case[0], job.fair[0]), min(job.best_case[1], job.fair[1])
        return job.fair

    def _try_place(self, job: SynergyJob, each: PerGpu, *, reverted: bool) -> bool:
        gpus_by_server = find_gpus(job.gpus, each, self._servers, self._reading)
        if gpus_by_server is None:
            return False
        self._servers.allocate(gpus_by_server, each)
        grant = SynergyGrant(job, gpus_by_server, each, reverted)
        self.grants[job.job_id] = grant
        for server, _ in gpus_by_server:
            self._residents[server].append(grant)
        return True

    def _short_of_cpus_or_memory(self, gpus: int) -> Iterator[ServerGpus]:
        """Yields servers with enough free GPUs for the job, regardless of CPUs and memory."""
        if not self._reading.consolidates and gpus > 1:
            whole = next((server for server, free in enumerate(self._servers.gpus) if free >= gpus), None)
            if whole is not None:
                yield whole, gpus
                return
        if self._reading.consolidates:
            yield from find_gpus(gpus, (0.0, 0.0), self._servers, self._reading) or ()
            return
        for free, server in sorted((free, server) for server, free in enumerate(self._servers.gpus) if free):
            yield server, min(free, gpus)
            gpus -= free
            if gpus <= 0:
                return

    def _missing(self, server: int, gpus: int, each: PerGpu) -> PerGpu:
        return (
            max(0.0, gpus * each[0] - self._servers.cpus[server]),
            max(0.0, gpus * each[1] - self._servers.memory[server]),
        )

    def _replace(self, victim: SynergyGrant) -> None:
        """Cuts a grant to at most the proportional share on the same GPUs."""
        self._servers.release(victim.gpus_by_server, victim.per_gpu)
        victim.per_gpu = self._cut(victim.job)
        victim.reverted = victim.reverted or victim.job.exceeds_fair_share
        victim.replaced = True
        self._servers.allocate(victim.gpus_by_server, victim.per_gpu)
