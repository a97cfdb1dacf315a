"""The input of Hadar: jobs, servers and utilities (Sultana et al., 2025, section III-A, table I).

A utility U_j(f_j - a_j) is the value of a job's completion time; it never rises with that time. Utilities of different
jobs are added and compared per GPU, so they count work in GPU-seconds at the job's best rate. (The paper counts
iterations per second, of which ResNet-18 does a hundred times as many as ResNet-50.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.policies.errors import PolicyError

TaskAllocation = tuple[tuple[int, int], ...]
"""Pool and number of GPUs in it, for each pool of a gang, pools ascending."""


@dataclass(frozen=True, slots=True)
class GangThroughput:
    """Iterations per second of a whole gang of `workers` GPUs, by type in the order of `ServerPools.types`: X_j^r.

    `consolidated` is on one server, `spread` on several, less the cost of communication; 0.0 for a type that it cannot
    run on. The gang uses `min_servers` to `max_servers` servers, and several types only if `mixes_types`. Identical
    jobs share the object.
    """

    workers: int
    consolidated: tuple[float, ...]
    spread: tuple[float, ...]
    min_servers: int = 1
    max_servers: int | None = None
    mixes_types: bool = True

    @property
    def slowest_rate(self) -> float:
        """The rate on the slowest type that it can run on; 0.0 if there is none."""
        return min((rate for rate in self.consolidated if rate > 0), default=0.0)

    def rate(self, types: Iterable[int], servers: int) -> float:
        """Returns the rate on these types: that of the slowest task (equation 1b)."""
        rates = self.consolidated if servers <= 1 else self.spread
        return min(rates[kind] for kind in types)


@dataclass(frozen=True, slots=True)
class HadarJob:
    """A job, running or not, with `remaining` of its `total` iterations left, `age` seconds after it arrived."""

    job: str
    throughput: GangThroughput
    remaining: float
    total: float
    age: float = 0.0
    copies: int = 1
    """Copies among which the work of the job is divided, of which this is one."""

    @property
    def workers(self) -> int:
        """Number of GPUs; it gets all of them or none (equation 1e)."""
        return self.throughput.workers

    def completion_time(self, rate: float, delay: float = 0.0) -> float:
        """Returns the seconds from arrival to end, f_j - a_j, at this rate after a delay; infinite at rate 0."""
        return self.age + delay + self.remaining / rate if rate > 0 else inf


@dataclass(frozen=True, eq=False)
class ServerPools:
    """Pools of GPUs (h and r of the paper): `capacity[p]` GPUs of type `types[type_of[p]]` on server `server_of[p]`."""

    types: tuple[str, ...]
    type_of: Ints
    server_of: Ints
    capacity: Ints
    gpus_of_type: Ints = field(init=False, repr=False)
    """Total GPUs of each type."""
    _best: dict[int, tuple[GangThroughput, float]] = field(init=False, repr=False, default_factory=dict)
    """By address, since a gang's rates are slow to hash; the gang is kept so that no other gets its address."""

    def __post_init__(self) -> None:
        counts = np.bincount(self.type_of, weights=self.capacity, minlength=len(self.types))
        object.__setattr__(self, "gpus_of_type", counts.astype(np.int64))

    @classmethod
    def of_single_type(cls, servers: Iterable[tuple[str, int]]) -> ServerPools:
        """Returns servers with one GPU type each, from pairs of type and number of GPUs."""
        pairs = tuple(servers)
        types = tuple(dict.fromkeys(kind for kind, _ in pairs))
        return cls(
            types,
            np.array([types.index(kind) for kind, _ in pairs], dtype=np.int64),
            np.arange(len(pairs), dtype=np.int64),
            np.array([gpus for _, gpus in pairs], dtype=np.int64),
        )

    def free_after(self, allocations: Iterable[TaskAllocation]) -> Ints:
        """Returns the free GPUs of each pool after these allocations."""
        free = self.capacity.tolist()
        for allocation in allocations:
            for pool, gpus in allocation:
                free[pool] -= gpus
        return np.array(free, dtype=np.int64)

    @cached_property
    def pool_types(self) -> list[int]:
        """`type_of` as a list, which is faster for single pools."""
        return [int(kind) for kind in self.type_of]

    @cached_property
    def _offers_of_pool(self) -> list[tuple[frozenset[int], int]]:
        """By type what `offer` returns for a single pool."""
        return [(frozenset((kind,)), 1) for kind in range(len(self.types))]

    @cached_property
    def pool_servers(self) -> list[int]:
        """`server_of` as a list."""
        return [int(server) for server in self.server_of]

    def best_rate(self, throughput: GangThroughput) -> float:
        """Returns the rate on the fastest types with enough GPUs for the gang; 0.0 where it never fits."""
        known = self._best.get(id(throughput))
        return self.best_rates((throughput,))[0] if known is None else known[1]

    def best_rates(self, throughputs: Sequence[GangThroughput]) -> list[float]:
        """Returns the `best_rate` of each."""
        new = [one for one in {id(one): one for one in throughputs}.values() if id(one) not in self._best]
        if new:
            rates = np.array([one.consolidated for one in new], dtype=np.float64).reshape(len(new), len(self.types))
            workers, mixes = np.array([one.workers for one in new]), np.array([one.mixes_types for one in new])
            best = np.zeros(len(new))
            for kind, own in enumerate(self.gpus_of_type.tolist()):
                as_fast = np.where(rates >= rates[:, [kind]], self.gpus_of_type, 0).sum(axis=1)
                fits = np.where(mixes, as_fast, own) >= workers
                best = np.where(fits, np.maximum(best, rates[:, kind]), best)
            for one, rate in zip(new, best.tolist(), strict=True):
                self._best[id(one)] = one, rate
        return [self._best[id(one)][1] for one in throughputs]

    def copies_rate(self, job: HadarJob) -> float:
        """Returns the rate of all copies of a forked job together, each on the best of the servers that are left."""
        of_pool = np.array(job.throughput.consolidated)[self.type_of] * (self.capacity >= job.workers)
        by_server = np.zeros(int(self.server_of.max(initial=-1)) + 1)
        np.maximum.at(by_server, self.server_of, of_pool)
        return float(np.sort(by_server)[::-1][: job.copies].sum())

    def rate(self, job: HadarJob, allocation: TaskAllocation) -> float:
        """Returns the job's iterations per second with this allocation."""
        if len(allocation) == 1:
            return job.throughput.consolidated[self.pool_types[allocation[0][0]]]
        return job.throughput.rate(*self.offer(allocation))

    def offer(self, allocation: TaskAllocation) -> tuple[frozenset[int], int]:
        """Returns what a job's rate with this allocation depends on: the types, and 1 for one server, 2 for several."""
        if len(allocation) == 1:
            return self._offers_of_pool[self.pool_types[allocation[0][0]]]
        types, servers = self.pool_types, self.pool_servers
        first = servers[allocation[0][0]]
        spread = any(servers[pool] != first for pool, _ in allocation)
        return frozenset(types[pool] for pool, _ in allocation), 2 if spread else 1

    def gpus_by_type(self, allocation: TaskAllocation) -> dict[int, int]:
        """Returns the GPUs of an allocation by type, as an index of `types`."""
        if len(allocation) == 1:
            return {self.pool_types[allocation[0][0]]: allocation[0][1]}
        counts: dict[int, int] = {}
        types = self.pool_types
        for pool, gpus in allocation:
            kind = types[pool]
            counts[kind] = counts.get(kind, 0) + gpus
        return counts

    def allocation(self, pools: Sequence[int] | Ints, gpus: Sequence[int] | Ints) -> TaskAllocation:
        """Returns the allocation of `gpus` GPUs in each of `pools`, without pools of 0 GPUs."""
        return tuple(sorted((int(pool), int(count)) for pool, count in zip(pools, gpus, strict=True) if count > 0))


Utility = Callable[[HadarJob, float], float]
"""The utility of a job and its completion time in seconds: never negative, never higher for a later end."""

UtilityFactory = Callable[[Sequence[HadarJob], ServerPools], Utility]
"""Returns the utility of a round from all its jobs and the servers."""


@dataclass(frozen=True, slots=True)
class InverseTime:
    """A utility of the form size / time * worth, with size and worth of each job; 0.0 if it never ends.

    The time counts from now, with `since_arrival` from the arrival of the job.
    """

    parts: Mapping[str, tuple[float, float]]
    since_arrival: bool = False

    def __call__(self, job: HadarJob, completion: float) -> float:
        ahead = completion if self.since_arrival else completion - job.age
        if not 0 < ahead < inf:
            return 0.0
        size, worth = self.parts[job.job]
        return size / ahead * worth


_SLACK_WEIGHT: Final = 10.0
"""How much more a second of slack counts than a second of work. Above 10 the makespan no longer falls; below 4 the
total time grows."""

_CLAIM_FROM: Final = 0.9
"""Part of the time that all work takes from which a job's own length decides the total time."""

_CLAIM_WEIGHT: Final = 10.0
"""How much more a job with first claim is worth per GPU than any other can be."""

_MIN_SECONDS: Final = 360.0
"""Seconds of the paper's round. Shorter times count as this long, so that no job is infinitely urgent."""


def effective_throughput(queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
    """The paper's default: a job's total work over its completion time, E_j N_j / (f_j - a_j).

    Long jobs come first, since they lose the least utility by waiting: total time is short, mean completion time long.
    """
    whole = _best_seconds(queue, [job.total for job in queue], servers)
    parts = {job.job: (job.workers * seconds, 1.0) for job, seconds in zip(queue, whole, strict=True)}
    return InverseTime(parts, since_arrival=True)


def slack_aware(queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
    """Short jobs first, unless a long job would then end after all others.

    A job's slack is the time that all work takes less its own; a copy of a forked job is but as long as the whole job.
    Measured: the total time of `effective_throughput`, and completion times almost as short as with the shortest job
    first.

    Copies can have all nodes at last, so that a long forked job need not begin early. What counts for the total time is
    the part of the job's rate on all nodes that a copy has: of two jobs that are equally long, the one that is slow on
    the other nodes gets the fast one.
    """
    return InverseTime(_slack_parts(queue, servers, _work_horizon(queue, servers)))


def _slack_parts(queue: Sequence[HadarJob], servers: ServerPools, horizon: float) -> dict[str, tuple[float, float]]:
    part_at_best = {
        job.job: best / max(best, servers.copies_rate(job))  # a copy may need several servers
        for job in queue
        if job.copies > 1 and (best := servers.best_rate(job.throughput)) > 0
    }
    parts = dict[str, tuple[float, float]]()
    for job, alone in zip(queue, _remaining_seconds(queue, servers), strict=True):
        of_slack = (
            _SLACK_WEIGHT / max(horizon - alone, _MIN_SECONDS)
            if job.copies == 1
            else part_at_best.get(job.job, 0.0) / max(horizon, _MIN_SECONDS)
        )
        parts[job.job] = job.workers * alone, 1.0 / max(alone * job.copies, _MIN_SECONDS) + of_slack
    return parts


def longest_first(queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
    """For a short total time: `slack_aware`, but jobs that alone take nearly as long as all work have first claim on
    the types that are fastest for them, as by `effective_throughput`."""
    horizon = _work_horizon(queue, servers)
    parts, most = _slack_parts(queue, servers, horizon), _CLAIM_WEIGHT * (1.0 + _SLACK_WEIGHT) / _MIN_SECONDS
    for job, alone in zip(queue, _remaining_seconds(queue, servers), strict=True):
        if alone >= _CLAIM_FROM * horizon:
            parts[job.job] = job.workers * most * alone, 1.0
    return InverseTime(parts)


def _work_horizon(queue: Sequence[HadarJob], servers: ServerPools) -> float:
    """Returns the seconds that all work takes at the mean speed of each type; at least those of the longest job."""
    best = servers.best_rates([job.throughput for job in queue])
    runnable = [(job, rate) for job, rate in zip(queue, best, strict=True) if rate > 0]
    if not runnable:
        return 0.0
    rates = np.array([job.throughput.consolidated for job, _ in runnable], dtype=np.float64)
    best_of_runnable = np.array([rate for _, rate in runnable], dtype=np.float64)
    part = [float(of_best[-1]) / len(runnable) for of_best in np.cumsum(rates / best_of_runnable[:, None], axis=0).T]
    whole = sum(gpus * of_best for gpus, of_best in zip(servers.gpus_of_type.tolist(), part, strict=True))
    seconds = np.array([job.remaining for job, _ in runnable], dtype=np.float64) / best_of_runnable
    work = float(np.cumsum(np.array([job.workers for job, _ in runnable]) * seconds)[-1])
    return float(max(work / whole, seconds.max()))


def _remaining_seconds(queue: Sequence[HadarJob], servers: ServerPools) -> list[float]:
    return _best_seconds(queue, [job.remaining for job in queue], servers)


def _best_seconds(queue: Sequence[HadarJob], iterations: Sequence[float], servers: ServerPools) -> list[float]:
    """Returns the seconds that so many iterations take at each job's best rate; 0.0 if it can never run."""
    best = servers.best_rates([job.throughput for job in queue])
    return [left / rate if rate > 0 else 0.0 for left, rate in zip(iterations, best, strict=True)]


UTILITIES: Final[Mapping[str, UtilityFactory]] = {
    "effective": effective_throughput,
    "timely": slack_aware,
    "makespan": longest_first,
}
"""Every utility that the settings can name."""


def utility_named(name: str) -> UtilityFactory:
    """Returns a utility of `UTILITIES`. Raises PolicyError for an unknown name."""
    if name not in UTILITIES:
        raise PolicyError(f"there is no utility {name!r}: known are {', '.join(UTILITIES)}")
    return UTILITIES[name]
