"""Hadar in the replay: gangs over several types, by prices (Sultana et al., sections III and IV)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmsched.experiments.mixed.rounds import Grant, Question
from slurmsched.experiments.mixed.work import Active, Work
from slurmsched.experiments.mixed.workers import Workers
from slurmsched.policies.hadar import Allocation, Ask, Hadar, Servers, Speeds

__all__ = ["HadarRounds", "asked", "servers_of", "speeds_of"]


@dataclass(slots=True)
class HadarRounds:
    """Decides anew when a job came or went; between that everybody keeps what he has."""

    hadar: Hadar = field(default_factory=Hadar)
    name: str = "hadar"
    _jobs: frozenset[str] = frozenset()
    _places: dict[str, Allocation] = field(default_factory=dict)
    _servers: Servers | None = None

    def decide(self, question: Question) -> Sequence[Grant]:
        servers = self._servers = self._servers or servers_of(question.workers)
        jobs, before = frozenset(question.jobs), {one.grant.jobs[0]: one.grant.workers for one in question.last}
        self._places = {job: place for job, place in self._places.items() if job in jobs}
        if jobs != self._jobs:
            queue = asked(question, servers)
            self._places = self.hadar.decide(queue, servers, self._places)
            self._jobs = jobs
        return _granted(question.workers, servers, self._places, before)


def servers_of(workers: Workers) -> Servers:
    """A pool for the GPUs of each type on each server."""
    sizes: dict[tuple[int, str], int] = defaultdict(int)
    for server, kind in zip(workers.servers, workers.types, strict=True):
        sizes[server, kind] += 1
    types = tuple(workers.gpus)
    return Servers(
        types,
        np.array([types.index(kind) for _, kind in sizes], dtype=np.int64),
        np.array([server for server, _ in sizes], dtype=np.int64),
        np.array([*sizes.values()], dtype=np.int64),
    )


def asked(question: Question, servers: Servers) -> list[Ask]:
    """The active jobs as Hadar sees them; those that are alike share their speeds."""
    known: dict[Speeds, Speeds] = {}
    return [_ask(active, question.time, servers, known) for active in question.jobs.values()]


def speeds_of(work: Work, servers: Servers) -> Speeds:
    """Of the whole gang by type. The replay has no loss between servers."""
    rates = tuple(work.rates.get(kind, 0.0) for kind in servers.types)
    return Speeds(work.width, rates, rates)


def _ask(active: Active, now: float, servers: Servers, known: dict[Speeds, Speeds]) -> Ask:
    work, speeds = active.work, speeds_of(active.work, servers)
    return Ask(work.id, known.setdefault(speeds, speeds), active.remaining, work.steps, now - work.arrival)


def _granted(
    workers: Workers, servers: Servers, places: Mapping[str, Allocation], before: Mapping[str, tuple[int, ...]]
) -> list[Grant]:
    """Workers for the places: a job that stays in its pools keeps the very same."""
    types, free = servers.types, defaultdict[tuple[int, str], list[int]](list)
    for worker, key in enumerate(zip(workers.servers, workers.types, strict=True)):
        free[key].append(worker)
    pool = [(int(s), types[t]) for s, t in zip(servers.server_of, servers.type_of, strict=True)]
    grants: dict[str, Grant] = {}
    for job, place in places.items():
        had = before.get(job, ())
        if had and _pools(workers, had) == {pool[at]: gpus for at, gpus in place}:
            grants[job] = Grant((job,), had)
            for worker in had:
                free[workers.servers[worker], workers.types[worker]].remove(worker)
    for job, place in places.items():
        if job not in grants:
            taken = [free[pool[at]].pop(0) for at, gpus in place for _ in range(gpus)]
            grants[job] = Grant((job,), tuple(sorted(taken)))
    return [*grants.values()]


def _pools(workers: Workers, taken: Sequence[int]) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = defaultdict(int)
    for worker in taken:
        found[workers.servers[worker], workers.types[worker]] += 1
    return dict(found)
