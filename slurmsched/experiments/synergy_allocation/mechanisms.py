"""The mechanisms of Synergy: proportional, greedy and tune (sections 4 and 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from slurmsched.experiments.synergy_allocation.problem import (
    FreeServers,
    PerGpu,
    ServerGpus,
    SynergyGrant,
    SynergyJob,
    SynergyVariant,
)


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
