"""Hadar's primal-dual scheduler (Sultana et al., 2025): prices (section III-B, equations 5 to 7), FIND_ALLOC and the
dual subroutine (algorithm 2), and a round (algorithm 1), in which running jobs keep their GPUs unless a new allocation
pays for its restarts (section IV-B).

The dual subroutine is a beam search over states, the free GPUs of every pool after some of the jobs. Of two ways to the
same state the better counts, and FIND_ALLOC runs once per state for identical jobs. Only the best states are followed
from job to job, so the work is jobs x states x FIND_ALLOC; with an unlimited beam it is the paper's recursion.

A few states hand each job the best of what is left, so that jobs that are slow on a type get it because they come
first. Therefore jobs with the same request then exchange their places for the highest total utility (`exchange`).

The paper compares the costs of the two branches (lines 18 to 23), but admitting no job always costs least. Here the
payoff (equation 8) is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log

import numpy as np
from scipy.optimize import linear_sum_assignment

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.policies.hadar.problem import (
    GangThroughput,
    HadarJob,
    ServerPools,
    TaskAllocation,
    Utility,
    UtilityFactory,
    effective_throughput,
)
from slurmsched.policies.stages import RUN_OVER_RESTART

_MIN_PRICE_RATIO = 2.0
"""Lowest ratio of the highest to the lowest price, so that a fuller server always costs more."""


@dataclass(frozen=True, slots=True)
class Prices:
    """`low[r]` and `high[r]`: the price of type r in a pool that is all free, and all taken (U_min^r and U_max^r)."""

    low: Floats
    high: Floats

    def pool_prices(self, servers: ServerPools, free: Ints) -> Floats:
        """Returns the price of one GPU in each pool (equation 5)."""
        taken = 1.0 - free / np.maximum(servers.capacity, 1)
        low, high = self.low[servers.type_of], self.high[servers.type_of]
        return np.asarray(low * (high / low) ** taken, dtype=np.float64)

    @property
    def alpha(self) -> float:
        """The total utility is at least 1 / (2 alpha) of the optimum (theorem 2)."""
        return max([1.0, *(log(high / low) for low, high in zip(self.low, self.high, strict=True))])


def compute_prices(jobs: Sequence[HadarJob], servers: ServerPools, utility: Utility, period: float) -> Prices:
    """Returns the prices of a round from its jobs. A slot is a round of `period` seconds.

    The paper computes U_max of every type from the completion on the fastest type; here it is that on the type itself,
    since a gang with one GPU of it runs no faster. The low price falls in the same proportion, so that a job that
    hardly gains from a fast type leaves it to others. The horizon T is when the slowest job ends if all jobs share the
    cluster. `eta` is the smallest that equation 9 allows.
    """
    kinds, total = len(servers.types), int(servers.capacity.sum())
    runnable = [job for job in jobs if job.remaining > 0 and servers.best_rate(job.throughput) > 0]
    high = np.zeros(kinds)
    for job in runnable:
        for kind, rate in enumerate(job.throughput.consolidated):
            if rate > 0:
                attainable = min(rate, servers.best_rate(job.throughput))
                high[kind] = max(high[kind], utility(job, job.completion_time(attainable)) / job.workers)
    if not runnable:
        return Prices(np.ones(kinds), np.full(kinds, _MIN_PRICE_RATIO))
    slots = [max(1, ceil(job.remaining / job.throughput.slowest_rate / period)) * job.workers for job in runnable]
    horizon = max(job.completion_time(job.throughput.slowest_rate) for job in runnable) + sum(slots) * period / max(
        total, 1
    )
    eta = max(1.0, total / min(slots))
    least = min(utility(job, horizon) / size for job, size in zip(runnable, slots, strict=True)) / (4 * eta)
    high = np.where(high > 0, high, high.max(initial=least) or 1.0)
    low = np.minimum((least or np.finfo(float).tiny) * high / high.max(), high / _MIN_PRICE_RATIO)
    return Prices(np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class PricedAllocation:
    """An allocation for a gang, its rate in iterations per second and the sum of the prices of its GPUs."""

    allocation: TaskAllocation
    rate: float
    cost: float


def find_alloc(
    throughput: GangThroughput, servers: ServerPools, free: Ints, price: Floats
) -> tuple[PricedAllocation, ...]:
    """Returns the undominated allocations, the fastest first: each is cheaper than all faster ones
    (FIND_ALLOC, algorithm 2, lines 24 to 36).

    Types are admitted one after the other, from the fastest. For a given slowest type only the cost differs, so the
    candidates are the cheapest server that holds the whole gang, the fewest servers, and the cheapest GPUs anywhere; of
    GPUs with the same price the slower, since faster ones do not speed up the gang.
    """
    return _undominated(throughput, _find_places(_GangShape.of(throughput), servers, free, price))


@dataclass(frozen=True, slots=True)
class _GangShape:
    """What the places of a gang depend on: its request, and by type how many types are slower, -1 where it cannot run.
    Gangs with different rates have it in common."""

    workers: int
    speed_ranks: tuple[int, ...]
    min_servers: int
    max_servers: int | None
    mixes_types: bool

    @classmethod
    def of(cls, throughput: GangThroughput) -> _GangShape:
        ascending = sorted({rate for rate in throughput.consolidated if rate > 0})
        ranks = tuple(ascending.index(rate) if rate > 0 else -1 for rate in throughput.consolidated)
        return cls(throughput.workers, ranks, throughput.min_servers, throughput.max_servers, throughput.mixes_types)

    def type_masks(self) -> Iterator[Mask]:
        """Yields masks of types: the fastest one, two, ... types if the gang mixes types, else each type alone."""
        by_rate = sorted(
            (kind for kind, rank in enumerate(self.speed_ranks) if rank >= 0), key=lambda kind: -self.speed_ranks[kind]
        )
        mask = np.zeros(len(self.speed_ranks), dtype=np.bool_)
        for kind in by_rate:
            mask = mask.copy() if self.mixes_types else np.zeros_like(mask)
            mask[kind] = True
            yield mask


@dataclass(frozen=True, slots=True)
class _Place:
    """An allocation and the sum of the prices of its GPUs; the gang's rate follows from the types and servers."""

    allocation: TaskAllocation
    kinds: tuple[int, ...]
    is_consolidated: bool
    cost: float


def _find_places(shape: _GangShape, servers: ServerPools, free: Ints, price: Floats) -> tuple[_Place, ...]:
    """Returns the candidates, of those with the same types on one or on several servers the cheapest."""
    if shape.min_servers > 1:
        free = np.minimum(free, -(-shape.workers // shape.min_servers))
    idle = free > 0
    cheapest: dict[tuple[tuple[int, ...], bool], _Place] = {}
    for allowed in shape.type_masks():
        pools = np.flatnonzero(allowed[servers.type_of] & idle)
        if int(free[pools].sum()) >= shape.workers:
            for place in _candidates(shape, servers, pools, free, price):
                known = cheapest.get((place.kinds, place.is_consolidated))
                if known is None or place.cost < known.cost:
                    cheapest[place.kinds, place.is_consolidated] = place
    return tuple(cheapest.values())


def _undominated(throughput: GangThroughput, places: Sequence[_Place]) -> tuple[PricedAllocation, ...]:
    """Returns the places at which the gang is faster than at all cheaper ones, the fastest first."""
    together, apart = throughput.consolidated, throughput.spread
    offers = [
        (-min((together if place.is_consolidated else apart)[kind] for kind in place.kinds), place.cost, place)
        for place in places
    ]
    offers.sort(key=lambda offer: offer[:2])
    kept: list[PricedAllocation] = []
    for slowness, cost, place in offers:
        if slowness < 0 and (not kept or cost < kept[-1].cost):
            kept.append(PricedAllocation(place.allocation, -slowness, cost))
    return tuple(kept)


def payoffs(
    job: HadarJob, allocations: tuple[PricedAllocation, ...], utility: Utility
) -> list[tuple[float, PricedAllocation]]:
    """Returns each allocation with its payoff: utility less cost (equation 8)."""
    return [(utility(job, job.completion_time(offer.rate)) - offer.cost, offer) for offer in allocations]


def _candidates(shape: _GangShape, servers: ServerPools, pools: Ints, free: Ints, price: Floats) -> Iterator[_Place]:
    ranks = np.array(shape.speed_ranks)[servers.type_of[pools]]
    free_by_server = np.asarray(np.bincount(servers.server_of[pools], weights=free[pools]), dtype=np.float64)
    cheapest = pools[np.lexsort((-free[pools], ranks, price[pools]))]
    server_of = servers.server_of[cheapest]
    single = _cheapest_server(shape.workers, server_of, free[cheapest], price[cheapest], free_by_server)
    if single is not None:
        yield from _take_in_order(shape, servers, cheapest[server_of == single], free, price)
    elif len(free_by_server) > 1:
        fewest_servers = cheapest[np.lexsort((server_of, -free_by_server[server_of]))]
        yield from _take_in_order(shape, servers, fewest_servers, free, price)
    yield from _take_in_order(shape, servers, cheapest, free, price)


def _cheapest_server(wanted: int, server_of: Ints, free: Ints, price: Floats, free_by_server: Floats) -> int | None:
    """Returns the cheapest server that holds the whole gang, or None; ties go to the one with the fewest free GPUs,
    then to the first in the order of the pools."""
    fitting = free_by_server[server_of] >= wanted
    if not fitting.any():
        return None
    if len(server_of) == np.count_nonzero(free_by_server):  # each has one type, as most have
        alone = np.flatnonzero(fitting)
        return int(server_of[alone[np.lexsort((free[alone], wanted * price[alone]))[0]]])
    grouped = np.flatnonzero(fitting)[np.argsort(server_of[fitting], kind="stable")]
    server, cumulated = server_of[grouped], np.cumsum(free[grouped])
    before = cumulated - free[grouped]
    taken = np.minimum(np.maximum(wanted - (before - before[np.searchsorted(server, server)]), 0), free[grouped])
    cost = np.bincount(server, weights=taken * price[grouped], minlength=len(free_by_server))
    best = np.lexsort((free_by_server[server_of[fitting]], cost[server_of[fitting]]))[0]
    return int(server_of[fitting][best])


def _take_in_order(shape: _GangShape, servers: ServerPools, order: Ints, free: Ints, price: Floats) -> Iterator[_Place]:
    """Yields the gang's place in the first of these pools, if it may use that many servers."""
    taken, left = list[tuple[int, int]](), shape.workers
    for pool, idle in zip(order.tolist(), free[order].tolist(), strict=True):
        taken.append((pool, min(idle, left)))
        left -= taken[-1][1]
        if not left:
            break
    pools, gpus = [pool for pool, _ in taken], np.array([count for _, count in taken])
    server_count = len(set(servers.server_of[pools].tolist()))
    if not left and shape.min_servers <= server_count <= (shape.max_servers or server_count):
        kinds = tuple(sorted(set(servers.type_of[pools].tolist())))
        yield _Place(tuple(sorted(taken)), kinds, server_count <= 1, float(gpus @ price[pools]))


BEAM_WIDTH = 4
"""Default number of states that the dual subroutine follows."""


@dataclass(frozen=True, eq=False, slots=True)
class _State:
    """Free GPUs by pool, the sum of payoffs so far, and the last admitted job with its allocation."""

    key: bytes
    free: Ints
    idle: int
    payoff: float
    job: str = ""
    allocation: TaskAllocation = ()
    previous: _State | None = None


class _AllocationCache:
    """Results of FIND_ALLOC by state and gang: the places are those of all gangs of one shape in the same state."""

    def __init__(self, servers: ServerPools, prices: Prices) -> None:
        self._servers, self._prices = servers, prices
        self._places: dict[tuple[bytes, _GangShape], tuple[_Place, ...]] = {}
        self._pool_prices: dict[bytes, Floats] = {}

    def find(self, throughput: GangThroughput, shape: _GangShape, state: _State) -> tuple[PricedAllocation, ...]:
        """`shape` is that of `throughput`."""
        if state.idle < shape.workers:
            return ()
        key = state.key, shape
        if key not in self._places:
            if state.key not in self._pool_prices:
                self._pool_prices[state.key] = self._prices.pool_prices(self._servers, state.free)
            price = self._pool_prices[state.key]
            self._places[key] = _find_places(shape, self._servers, state.free, price)
        return _undominated(throughput, self._places[key])


def dp_allocation(
    queue: Sequence[HadarJob],
    servers: ServerPools,
    free: Ints,
    prices: Prices,
    utility: Utility,
    *,
    beam_width: int = BEAM_WIDTH,
) -> Mapping[str, TaskAllocation]:
    """Returns the admitted jobs with their allocations; only jobs with a positive payoff are admitted (algorithm 2)."""
    cache, smallest = _AllocationCache(servers, prices), min((job.workers for job in queue), default=0)
    beam = [_State(free.tobytes(), free, int(free.sum()), 0.0)]
    for job in by_utility_per_gpu(queue, servers, utility):
        states: dict[bytes, _State] = {state.key: state for state in beam}
        shape = _GangShape.of(job.throughput)
        for state in beam:
            for payoff, offer in payoffs(job, cache.find(job.throughput, shape, state), utility):
                if payoff > 0:
                    next_state = _next_state(state, job, offer.allocation, payoff)
                    known = states.get(next_state.key)
                    if known is None or known.payoff < next_state.payoff:
                        states[next_state.key] = next_state
        beam = sorted(states.values(), key=lambda state: -state.payoff)[:beam_width]
        if all(state.idle < smallest for state in beam):
            break
    return _admitted(beam[0])


def fill_idle(
    queue: Sequence[HadarJob], servers: ServerPools, free: Ints, prices: Prices, utility: Utility
) -> dict[str, TaskAllocation]:
    """Returns allocations in free GPUs for jobs that failed the payoff test, since these GPUs would be idle."""
    cache, state = _AllocationCache(servers, prices), _State(free.tobytes(), free, int(free.sum()), 0.0)
    allocations: dict[str, TaskAllocation] = {}
    for job in by_utility_per_gpu(queue, servers, utility):
        if state.idle < job.workers:
            continue
        chosen = payoffs(job, cache.find(job.throughput, _GangShape.of(job.throughput), state), utility)
        if chosen:
            _, offer = max(chosen, key=lambda pair: pair[0])
            allocations[job.job] = offer.allocation
            state = _next_state(state, job, offer.allocation, 0.0)
    return allocations


def by_utility_per_gpu(queue: Sequence[HadarJob], servers: ServerPools, utility: Utility) -> list[HadarJob]:
    """Returns the jobs by utility per GPU, the highest first; ties by GPUs, most first, then by earliest end."""

    def sort_key(job: HadarJob) -> tuple[float, int, float]:
        best = job.completion_time(servers.best_rate(job.throughput))
        return -utility(job, best) / job.workers, -job.workers, best

    return sorted(queue, key=sort_key)


def _next_state(state: _State, job: HadarJob, allocation: TaskAllocation, payoff: float) -> _State:
    free = state.free.copy()
    for pool, gpus in allocation:
        free[pool] -= gpus
    return _State(free.tobytes(), free, state.idle - job.workers, state.payoff + payoff, job.job, allocation, state)


def _admitted(state: _State) -> dict[str, TaskAllocation]:
    allocations: dict[str, TaskAllocation] = {}
    step: _State | None = state
    while step is not None and step.previous is not None:
        allocations[step.job] = step.allocation
        step = step.previous
    return dict(reversed(allocations.items()))


@dataclass(frozen=True, slots=True)
class HadarScheduler:
    """Decides rounds (algorithm 1).

    `restart_cost` is the seconds that a job loses when it gets other GPUs, or none. `period` is the seconds to the next
    round. The dual subroutine follows `beam_width` states. `work_conserving`: jobs that fail the payoff test get GPUs
    that would be idle. `may_migrate`: running jobs may get other GPUs.
    """

    make_utility: UtilityFactory = effective_throughput
    restart_cost: float = 10.0
    period: float = 360.0
    beam_width: int = BEAM_WIDTH
    work_conserving: bool = True
    may_migrate: bool = True

    def decide(
        self, queue: Sequence[HadarJob], servers: ServerPools, running: Mapping[str, TaskAllocation] | None = None
    ) -> dict[str, TaskAllocation]:
        """Returns the allocations of the jobs that run in the coming round; the others wait."""
        return PricedRound(self, queue, servers).decide(running or {})


class PricedRound:
    """One round's jobs, servers and prices."""

    def __init__(self, scheduler: HadarScheduler, queue: Sequence[HadarJob], servers: ServerPools) -> None:
        self._scheduler, self._queue, self._servers = scheduler, queue, servers
        self._utility: Utility = scheduler.make_utility(queue, servers)

    @cached_property
    def _prices(self) -> Prices:
        """Only allocations that are looked for have prices, not the worth of those that there are."""
        return compute_prices(self._queue, self._servers, self._utility, self._scheduler.period)

    def decide(self, running: Mapping[str, TaskAllocation]) -> dict[str, TaskAllocation]:
        """Returns the allocations of the jobs that run in the coming round."""
        held = dict(running)
        kept = self.solve(held)
        if not self._scheduler.may_migrate:
            return kept
        if not held:
            return self.exchange(kept, held)
        restarted = self.solve({})
        unmoved = {
            job: held[job]
            for job in restarted
            if job in held and _same_counts(self._servers, restarted[job], held[job])
        }
        kept, restarted = (self.exchange(allocations, held) for allocations in (kept, self.solve(unmoved)))
        return restarted if self.total_utility(restarted, held) > self.total_utility(kept, held) else kept

    def solve(self, running: Mapping[str, TaskAllocation]) -> dict[str, TaskAllocation]:
        """Returns the running allocations, and new ones for the other jobs."""
        result, scheduler, servers = dict(running), self._scheduler, self._servers
        waiting = [job for job in self._queue if job.job not in result]
        free = servers.free_after(result.values())
        result |= dp_allocation(waiting, servers, free, self._prices, self._utility, beam_width=scheduler.beam_width)
        if scheduler.work_conserving:
            waiting = [job for job in waiting if job.job not in result]
            result |= fill_idle(waiting, servers, servers.free_after(result.values()), self._prices, self._utility)
        return result

    def exchange(
        self, allocations: Mapping[str, TaskAllocation], running: Mapping[str, TaskAllocation]
    ) -> dict[str, TaskAllocation]:
        """Returns the same places, given anew to the jobs with the same request, waiting ones included, so that the
        total utility is highest: an assignment problem for each request. A restart costs its part of the next run."""
        by_request: dict[tuple[int, int, int | None, bool], list[HadarJob]] = {}
        for job in self._queue:
            gang = job.throughput
            request = gang.workers, gang.min_servers, gang.max_servers, gang.mixes_types
            by_request.setdefault(request, []).append(job)
        exchanged = dict(allocations)
        for jobs in by_request.values():
            places = {job.job: allocations[job.job] for job in jobs if job.job in allocations}
            if places and len(jobs) > 1:
                new = self._assign(jobs, places, running)
                exchanged = {job: place for job, place in exchanged.items() if job not in places or job in new} | new
        return exchanged

    def _assign(
        self, jobs: Sequence[HadarJob], places: Mapping[str, TaskAllocation], running: Mapping[str, TaskAllocation]
    ) -> dict[str, TaskAllocation]:
        """Returns who of `jobs` gets which of `places`, which some of them have. Ties go to who has the place."""
        servers, scheduler = self._servers, self._scheduler
        part = min(1.0 / RUN_OVER_RESTART, scheduler.restart_cost / scheduler.period)
        allocations, types = list(places.values()), dict[tuple[frozenset[int], int], int]()
        type_of = [
            types.setdefault(
                (frozenset(servers.type_of[pools].tolist()), min(2, len({*servers.server_of[pools]}))), len(types)
            )
            for pools in ([pool for pool, _ in allocation] for allocation in allocations)
        ]
        worth = np.empty((len(jobs), len(types)))
        for row, job in enumerate(jobs):
            delay = scheduler.restart_cost if job.job in running else 0.0
            for (kinds, server_count), column in types.items():
                rate = job.throughput.rate(kinds, server_count)
                worth[row, column] = self._utility(job, job.completion_time(rate, delay)) if rate > 0 else -inf
        chosen = _contenders(worth, [job.job in running or job.job in places for job in jobs], len(places))
        values = worth[chosen][:, type_of]
        column_of = {name: column for column, name in enumerate(places)}
        for row, name in enumerate(jobs[index].job for index in chosen):
            if name in running:
                held = self._utility_at(jobs[chosen[row]], running[name])
                values[row] = values[row] * (1 - part) + held * part
                values[row, [place == running[name] for place in allocations]] = held * (1 + part)
            if name in column_of:
                values[row, column_of[name]] *= 1 + _TIE
        rows, columns = linear_sum_assignment(values, maximize=True)
        return {jobs[chosen[row]].job: allocations[column] for row, column in zip(rows, columns, strict=True)}

    def total_utility(self, allocations: Mapping[str, TaskAllocation], running: Mapping[str, TaskAllocation]) -> float:
        """Returns the sum of utilities, less a restart for every running job that loses or changes its allocation."""
        total = 0.0
        for job in self._queue:
            allocation, held = allocations.get(job.job), running.get(job.job)
            if allocation is not None:
                delay = self._scheduler.restart_cost if held is not None and held != allocation else 0.0
                total += self._utility_at(job, allocation, delay)
            elif held is not None:
                total -= self._utility_at(job, held) - self._utility_at(job, held, self._scheduler.restart_cost)
        return total

    def _utility_at(self, job: HadarJob, allocation: TaskAllocation, delay: float = 0.0) -> float:
        return self._utility(job, job.completion_time(self._servers.rate(job, allocation), delay))


_TIE = 1e-9
"""Relative, far below any difference of utilities that counts."""


def _contenders(worth: Floats, are_in: Sequence[bool], places: int) -> list[int]:
    """Returns the jobs, by index, that may get one of so many places in the best assignment: those that are in, and for
    each offer (a column of `worth`) as many of the others as there are places, those to whom it is worth most."""
    others = np.flatnonzero(~np.array(are_in))
    best = np.argsort(-worth[others], axis=0, kind="stable")[:places]
    return sorted({*np.flatnonzero(are_in).tolist(), *others[best].ravel().tolist()})


def _same_counts(servers: ServerPools, first: TaskAllocation, second: TaskAllocation) -> bool:
    """Returns whether both have the same number of GPUs of each type, so that neither is better."""
    return servers.gpus_by_type(first) == servers.gpus_by_type(second)
