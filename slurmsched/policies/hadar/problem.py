"""A job as Hadar sees it (Sultana et al., section III-A, table I).

The GPUs of one type on one server, h and r of the paper, as vectors.

What it is worth to end a job so many seconds after it arrived: U_j(f_j - a_j), never rising (section III-A).

Utilities of different jobs are added up and compared by the GPU, so all of these count in whole GPUs at the job's best
speed. (The paper counts iterations per second, of which ResNet-18 does a hundred times as many as ResNet-50.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

TaskAllocation = tuple[tuple[int, int], ...]
"""Pools, ascending, and the GPUs that a gang has in each."""


@dataclass(frozen=True, slots=True)
class GangThroughput:
    """Iterations per second of a whole gang of `workers`, by type as the servers number them: X_j^r.

    `together` is on one server, `apart` on several; what it loses there is the cost of communication. 0.0 is a type
    that it cannot run on. It lies on `fewest` to `most` servers, and on several types only if it `mixes`. Jobs that are
    alike share the object.
    """

    workers: int
    consolidated: tuple[float, ...]
    spread: tuple[float, ...]
    min_servers: int = 1
    max_servers: int | None = None
    mixes_types: bool = True

    @property
    def slowest_rate(self) -> float:
        """On the slowest type that it runs on at all."""
        return min((rate for rate in self.consolidated if rate > 0), default=0.0)

    def rate(self, types: Iterable[int], servers: int) -> float:
        """On these types: the slowest task holds the others back (equation 1b)."""
        rates = self.consolidated if servers <= 1 else self.spread
        return min(rates[kind] for kind in types)


@dataclass(frozen=True, slots=True)
class HadarJob:
    """A job in the queue, running or not: `left` of its `total` iterations, `age` seconds after it arrived."""

    job: str
    throughput: GangThroughput
    remaining: float
    total: float
    age: float = 0.0

    @property
    def workers(self) -> int:
        """GPUs, all or none of them (equation 1e)."""
        return self.throughput.workers

    def completion_time(self, rate: float, delay: float = 0.0) -> float:
        """Seconds from arrival to end, f_j - a_j, if it works at this rate after a delay."""
        return self.age + delay + self.remaining / rate if rate > 0 else inf


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ServerPools:
    """`capacity[p]` GPUs of type `type_of[p]`, by position in `types`, on the server `server_of[p]`."""

    types: tuple[str, ...]
    type_of: Ints
    server_of: Ints
    capacity: Ints
    gpus_of_type: Ints = field(init=False, repr=False)
    """GPUs of each type."""
    _best: dict[GangThroughput, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        counts = np.bincount(self.type_of, weights=self.capacity, minlength=len(self.types))
        object.__setattr__(self, "gpus_of_type", counts.astype(np.int64))

    @classmethod
    def of_single_type(cls, servers: Iterable[tuple[str, int]]) -> ServerPools:
        """Servers of one type each, so many GPUs on each, in this order."""
        found = tuple(servers)
        types = tuple(dict.fromkeys(kind for kind, _ in found))
        return cls(
            types,
            np.array([types.index(kind) for kind, _ in found], dtype=np.int64),
            np.arange(len(found), dtype=np.int64),
            np.array([gpus for _, gpus in found], dtype=np.int64),
        )

    def free_after(self, allocations: Iterable[TaskAllocation]) -> Ints:
        """What is free in each pool beside these."""
        free = self.capacity.copy()
        for allocation in allocations:
            for pool, gpus in allocation:
                free[pool] -= gpus
        return free

    def best_rate(self, throughput: GangThroughput) -> float:
        """Iterations per second on the fastest types that have enough GPUs for the gang; 0.0 where it never fits."""
        if throughput not in self._best:
            room, reached = 0, 0.0
            for rate, gpus in sorted(
                zip(throughput.consolidated, self.gpus_of_type.tolist(), strict=True), reverse=True
            ):
                room = room + gpus if throughput.mixes_types else gpus
                if room >= throughput.workers:
                    reached = rate
                    break
            self._best[throughput] = reached
        return self._best[throughput]

    def rate(self, job: HadarJob, allocation: TaskAllocation) -> float:
        """Iterations per second there."""
        pools = [pool for pool, _ in allocation]
        return job.throughput.rate(self.type_of[pools].tolist(), len(set(self.server_of[pools].tolist())))

    def gpus_by_type(self, allocation: TaskAllocation) -> dict[int, int]:
        """GPUs by type."""
        found: dict[int, int] = {}
        for pool, gpus in allocation:
            kind = int(self.type_of[pool])
            found[kind] = found.get(kind, 0) + gpus
        return found

    def allocation(self, pools: Sequence[int] | Ints, gpus: Sequence[int] | Ints) -> TaskAllocation:
        """Those with any GPU of them, pools ascending."""
        return tuple(sorted((int(pool), int(count)) for pool, count in zip(pools, gpus, strict=True) if count > 0))


Utility = Callable[[HadarJob, float], float]
"""Of a job of the round and its completion time in seconds. Never negative, never more for a later end."""

UtilityFactory = Callable[[Sequence[HadarJob], ServerPools], Utility]
"""The utility of a round, given all jobs there are and the servers."""

_SLACK_WEIGHT: Final = 10.0
"""How much more a second of slack counts than a second of work. From 10 on the last job ends no sooner; below 4 the
total time grows."""

_MIN_SECONDS: Final = 360.0
"""Seconds, the paper's round: what is shorter is equally short, and no job is infinitely urgent."""


def effective_throughput(queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
    """The work of a job's whole life per second of it, E_j N_j / (f_j - a_j): the paper's default. Long jobs come
    first, for they lose the least of their worth by waiting: a short total time, and late completions."""
    whole = {job.job: _best_seconds(job, job.total, servers) for job in queue}

    def utility(job: HadarJob, completion: float) -> float:
        return job.workers * whole[job.job] / completion if 0 < completion < inf else 0.0

    return utility


def shortest_first(_queue: Sequence[HadarJob], _servers: ServerPools) -> Utility:
    """One over the seconds to come: short jobs first."""
    return lambda job, completion: 1.0 / max(completion - job.age, _MIN_SECONDS) if completion < inf else 0.0


def slack_aware(queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
    """Short jobs first, unless a long one could not end with the last of them any more: its slack is the time that all
    the work takes, less its own. The total time of the paper's default, and completions almost as soon as `sooner`."""
    horizon = _work_horizon(queue, servers)
    seconds = {job.job: _best_seconds(job, job.remaining, servers) for job in queue}

    def utility(job: HadarJob, completion: float) -> float:
        ahead, alone = completion - job.age, seconds[job.job]
        if not 0 < ahead < inf:
            return 0.0
        worth = 1.0 / max(alone, _MIN_SECONDS) + _SLACK_WEIGHT / max(horizon - alone, _MIN_SECONDS)
        return job.workers * alone / ahead * worth

    return utility


def _work_horizon(queue: Sequence[HadarJob], servers: ServerPools) -> float:
    """Seconds until all would be done at the mean speed of each type, or the longest alone at its best."""
    runnable = [job for job in queue if servers.best_rate(job.throughput) > 0]
    if not runnable:
        return 0.0
    part = [
        sum(job.throughput.consolidated[kind] / servers.best_rate(job.throughput) for job in runnable) / len(runnable)
        for kind in range(len(servers.types))
    ]
    whole = sum(gpus * of_best for gpus, of_best in zip(servers.gpus_of_type.tolist(), part, strict=True))
    work = sum(job.workers * _best_seconds(job, job.remaining, servers) for job in runnable)
    return float(max(work / whole, *(_best_seconds(job, job.remaining, servers) for job in runnable)))


def _best_seconds(job: HadarJob, iterations: float, servers: ServerPools) -> float:
    """At its best."""
    best = servers.best_rate(job.throughput)
    return iterations / best if best > 0 else 0.0


UTILITIES: Final[Mapping[str, UtilityFactory]] = {
    "effective-throughput": effective_throughput,
    "sooner": shortest_first,
    "timely": slack_aware,
}
"""Every utility by name."""
