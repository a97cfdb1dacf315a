"""Hadar's round as one would write it first: every state a vector of free GPUs by pool, every place found by sorting
all pools, every exchange a matrix of jobs and places. What `policies/hadar` decides is held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.optimize import linear_sum_assignment

from slurmsched.arrays import Floats, Ints
from slurmsched.policies.hadar.primal_dual import HadarScheduler, Prices, compute_prices
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob, ServerPools, TaskAllocation, Utility
from slurmsched.policies.stages import RUN_OVER_RESTART

Allocations = dict[str, TaskAllocation]


@dataclass(frozen=True)
class Offer:
    allocation: TaskAllocation
    rate: float
    cost: float


def offers(gang: GangThroughput, servers: ServerPools, free: Ints, price: Floats) -> list[Offer]:
    """FIND_ALLOC (algorithm 2, lines 24 to 36): the fastest first, each cheaper than all faster ones."""
    if gang.min_servers > 1:
        free = np.minimum(free, -(-gang.workers // gang.min_servers))
    cheapest: dict[tuple[frozenset[int], bool], Offer] = {}
    for kinds in _admitted_types(gang):
        pools = np.flatnonzero(np.isin(servers.type_of, kinds) & (free > 0))
        if int(free[pools].sum()) < gang.workers:
            continue
        for place in _places(gang, servers, pools, free, price):
            taken = [pool for pool, _ in place]
            key = frozenset(servers.type_of[taken].tolist()), len({*servers.server_of[taken].tolist()}) == 1
            rate = gang.rate(key[0], 1 if key[1] else 2)
            cost = float(np.array([gpus for _, gpus in place]) @ price[taken])
            if key not in cheapest or cost < cheapest[key].cost:
                cheapest[key] = Offer(tuple(sorted(place)), rate, cost)
    kept = list[Offer]()
    for offer in sorted(cheapest.values(), key=lambda offer: (-offer.rate, offer.cost)):
        if offer.rate > 0 and (not kept or offer.cost < kept[-1].cost):
            kept.append(offer)
    return kept


def _admitted_types(gang: GangThroughput) -> list[list[int]]:
    by_rate = sorted(
        (kind for kind, rate in enumerate(gang.consolidated) if rate > 0), key=lambda kind: -gang.consolidated[kind]
    )
    return [by_rate[: at + 1] if gang.mixes_types else [kind] for at, kind in enumerate(by_rate)]


def _places(
    gang: GangThroughput, servers: ServerPools, pools: Ints, free: Ints, price: Floats
) -> Iterator[list[tuple[int, int]]]:
    speed = np.array(gang.consolidated)[servers.type_of[pools]]
    in_order = pools[np.lexsort((pools, -free[pools], speed, price[pools]))]
    of_server: dict[int, list[int]] = {}
    for pool in in_order.tolist():
        of_server.setdefault(int(servers.server_of[pool]), []).append(pool)
    room = {server: int(free[own].sum()) for server, own in of_server.items()}

    def cost(server: int) -> float:
        left, total = gang.workers, 0.0
        for pool in of_server[server]:
            total += min(int(free[pool]), left) * float(price[pool])
            left -= min(int(free[pool]), left)
        return total

    large = [server for server in of_server if room[server] >= gang.workers]
    if large:
        chosen = of_server[min(large, key=lambda server: (cost(server), room[server]))]
        yield from _take(gang, servers, chosen, free)
    else:
        largest_first = sorted(of_server, key=lambda server: (-room[server], server))
        yield from _take(gang, servers, [pool for server in largest_first for pool in of_server[server]], free)
    yield from _take(gang, servers, in_order.tolist(), free)


def _take(
    gang: GangThroughput, servers: ServerPools, pools: Sequence[int], free: Ints
) -> Iterator[list[tuple[int, int]]]:
    taken, left = list[tuple[int, int]](), gang.workers
    for pool in pools:
        taken.append((pool, min(int(free[pool]), left)))
        left -= taken[-1][1]
        if not left:
            break
    count = len({int(servers.server_of[pool]) for pool, _ in taken})
    if not left and gang.min_servers <= count <= (gang.max_servers or count):
        yield taken


def in_order(queue: Sequence[HadarJob], servers: ServerPools, utility: Utility) -> list[HadarJob]:
    """By utility per GPU, the highest first; ties by GPUs, most first, then by earliest end."""

    def key(job: HadarJob) -> tuple[float, int, float]:
        best = job.completion_time(servers.best_rate(job.throughput))
        return -utility(job, best) / job.workers, -job.workers, best

    return sorted(queue, key=key)


def _without(free: Ints, allocation: TaskAllocation) -> Ints:
    left = free.copy()
    for pool, gpus in allocation:
        left[pool] -= gpus
    return left


def admit_paying(
    queue: Sequence[HadarJob], servers: ServerPools, free: Ints, prices: Prices, utility: Utility, width: int
) -> Allocations:
    """Algorithm 2 with a beam."""
    beam: list[tuple[Ints, float, Allocations]] = [(free, 0.0, {})]
    for job in in_order(queue, servers, utility):
        known = {state[0].tobytes(): state for state in beam}
        for left, worth, admitted in beam:
            for offer in offers(job.throughput, servers, left, prices.pool_prices(servers, left)):
                payoff = utility(job, job.completion_time(offer.rate)) - offer.cost
                after = _without(left, offer.allocation)
                other = known.get(after.tobytes())
                if payoff > 0 and (other is None or other[1] < worth + payoff):
                    known[after.tobytes()] = after, worth + payoff, {**admitted, job.job: offer.allocation}
        beam = sorted(known.values(), key=lambda state: -state[1])[:width]
    return beam[0][2]


def admit_all(
    queue: Sequence[HadarJob], servers: ServerPools, free: Ints, prices: Prices, utility: Utility
) -> Allocations:
    """Idle GPUs to those who do not pay."""
    admitted: Allocations = {}
    for job in in_order(queue, servers, utility):
        found = offers(job.throughput, servers, free, prices.pool_prices(servers, free))
        if found:
            best = max(found, key=lambda offer: utility(job, job.completion_time(offer.rate)) - offer.cost)
            admitted[job.job], free = best.allocation, _without(free, best.allocation)
    return admitted


@dataclass(frozen=True)
class PlainRound:
    """Algorithm 1."""

    scheduler: HadarScheduler
    queue: Sequence[HadarJob]
    servers: ServerPools

    @property
    def utility(self) -> Utility:
        return self.scheduler.make_utility(self.queue, self.servers)

    def decide(self, held: Mapping[str, TaskAllocation]) -> Allocations:
        kept = self.solve(held)
        if not held:
            return self.exchange(kept, held)
        counts = self.servers.gpus_by_type
        again = self.solve({})
        unmoved = {job: held[job] for job in again if job in held and counts(again[job]) == counts(held[job])}
        rounds, newcomer = [kept, self.solve(unmoved)], self.scheduler.makes_room_for
        if newcomer in again and newcomer not in rounds[1]:
            given = {newcomer: again[newcomer]}
            for job in again:
                beside = given | {job: unmoved[job]} if job in unmoved else given
                given = beside if (self.servers.free_after(beside.values()) >= 0).all() else given
            rounds.append(self.solve(given))
        return max((self.exchange(one, held) for one in rounds), key=lambda one: self.worth(one, held))

    def solve(self, held: Mapping[str, TaskAllocation]) -> Allocations:
        result, servers, utility = dict(held), self.servers, self.utility
        prices = compute_prices(self.queue, servers, utility, self.scheduler.period)
        waiting = [job for job in self.queue if job.job not in result]
        free = servers.free_after(result.values())
        result |= admit_paying(waiting, servers, free, prices, utility, self.scheduler.beam_width)
        waiting = [job for job in waiting if job.job not in result]
        return result | admit_all(waiting, servers, servers.free_after(result.values()), prices, utility)

    def exchange(self, allocations: Allocations, held: Mapping[str, TaskAllocation]) -> Allocations:
        by_request: dict[tuple[object, ...], list[HadarJob]] = {}
        for job in self.queue:
            gang = job.throughput
            request = gang.workers, gang.min_servers, gang.max_servers, gang.mixes_types
            by_request.setdefault(request, []).append(job)
        exchanged = dict(allocations)
        for jobs in by_request.values():
            names = [job.job for job in jobs if job.job in allocations]
            if names and len(jobs) > 1:
                for name in names:
                    del exchanged[name]
                exchanged |= self.assign(jobs, names, [allocations[name] for name in names], held)
        losers = [job for job in self.queue if job.job in allocations.keys() - exchanged.keys()]
        free = self.servers.free_after(exchanged.values())
        if not losers or not self.scheduler.work_conserving or not free.any():
            return exchanged
        prices = compute_prices(self.queue, self.servers, self.utility, self.scheduler.period)
        return exchanged | admit_all(losers, self.servers, free, prices, self.utility)

    def assign(
        self,
        jobs: Sequence[HadarJob],
        names: Sequence[str],
        places: Sequence[TaskAllocation],
        held: Mapping[str, TaskAllocation],
    ) -> Allocations:
        scheduler, utility = self.scheduler, self.utility
        part = min(1.0 / RUN_OVER_RESTART, scheduler.restart_cost / scheduler.period)
        values = np.empty((len(jobs), len(places)))
        for row, job in enumerate(jobs):
            own = held.get(job.job)
            delay = 0.0 if own is None else scheduler.restart_cost
            now = 0.0 if own is None else utility(job, job.completion_time(self.servers.rate(job, own)))
            for column, place in enumerate(places):
                rate = self.servers.rate(job, place)
                worth = utility(job, job.completion_time(rate, delay)) if rate > 0 else -inf
                if own is not None:
                    worth = now * (1 + part) if place == own else worth * (1 - part) + now * part
                values[row, column] = worth * (1 + 1e-9) if names[column] == job.job else worth
        rows, columns = linear_sum_assignment(values, maximize=True)
        return {jobs[row].job: places[column] for row, column in zip(rows, columns, strict=True)}

    def worth(self, allocations: Allocations, held: Mapping[str, TaskAllocation]) -> float:
        """The sum of utilities, less a restart for every running job that loses or changes its allocation."""
        utility, cost, total = self.utility, self.scheduler.restart_cost, 0.0

        def at(job: HadarJob, place: TaskAllocation, delay: float) -> float:
            return utility(job, job.completion_time(self.servers.rate(job, place), delay))

        for job in self.queue:
            has, had = allocations.get(job.job), held.get(job.job)
            if has is not None:
                total += at(job, has, cost if had is not None and had != has else 0.0)
            elif had is not None:
                total -= at(job, had, 0.0) - at(job, had, cost)
        return total
