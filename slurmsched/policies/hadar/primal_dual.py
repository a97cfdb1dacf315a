"""Hadar's primal-dual scheduler (Sultana et al., 2025): prices (section III-B, equations 5 to 7), the dual subroutine
(algorithm 2), and a round (algorithm 1), in which running jobs keep their GPUs unless a new allocation pays for its
restarts (section IV-B).

The dual subroutine is a beam search over states, the free GPUs of all servers after some of the jobs. Of two ways to
the same state the better counts, and FIND_ALLOC (`places`) runs once per state for identical jobs. Only the best states
are followed from job to job, so the work is jobs x states x FIND_ALLOC; with an unlimited beam it is the paper's
recursion. It ends once no job that is left would pay what the cheapest free GPU costs.

A few states hand each job the best of what is left, so that jobs that are slow on a type get it because they come
first. Therefore jobs with the same request then exchange their places for the highest total utility (`exchange`).

The paper compares the costs of the two branches (lines 18 to 23), but admitting no job always costs least. Here the
payoff (equation 8) is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log
from operator import gt, itemgetter
from typing import Any, Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.policies.hadar.exchange import Exchange, assign
from slurmsched.policies.hadar.places import (
    FreeGpus,
    Place,
    PricedAllocation,
)
from slurmsched.policies.hadar.problem import (
    HadarJob,
    ServerPools,
    TaskAllocation,
    Utility,
    UtilityFactory,
    effective_throughput,
)
from slurmsched.policies.hadar.queue import PlacesByRow, QueueArrays
from slurmsched.policies.hadar.servers import GangShape, GangShapes
from slurmsched.policies.stages import RUN_OVER_RESTART

_MIN_PRICE_RATIO: Final = 2.0
"""Lowest ratio of the highest to the lowest price, so that a fuller server always costs more."""


@dataclass(frozen=True, slots=True)
class Prices:
    """`low[r]` and `high[r]`: the price of type r in a pool that is all free, and all taken (U_min^r and U_max^r)."""

    low: Floats
    high: Floats

    def pool_prices(self, servers: ServerPools, free: Ints) -> Floats:
        """Returns the price of one GPU in each pool (equation 5)."""
        return self._prices(servers.type_of, servers.capacity, free)

    def _prices(self, kinds: Ints, capacity: Ints, free: Ints) -> Floats:
        taken = 1.0 - free / np.maximum(capacity, 1)
        low, high = self.low[kinds], self.high[kinds]
        return np.asarray(low * (high / low) ** taken, dtype=np.float64)

    def state(self, servers: ServerPools, free: Ints) -> FreeGpus:
        """Returns the free GPUs with their prices, which rise as more are taken."""
        tables = dict[tuple[int, int], list[float]]()

        def price_of(kind: int, capacity: int, free: int) -> float:
            if (kind, capacity) not in tables:
                each = np.arange(capacity + 1)
                alike = np.full(capacity + 1, kind), np.full(capacity + 1, capacity)
                tables[kind, capacity] = self._prices(*alike, each).tolist()
            return tables[kind, capacity][free]

        return FreeGpus.of(servers, free, self.pool_prices(servers, free), price_of)

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
    return _prices_of(QueueArrays(jobs, servers, utility), servers, period)


def _prices_of(queue: QueueArrays, servers: ServerPools, period: float) -> Prices:
    kinds, total = len(servers.types), int(servers.capacity.sum())
    runnable = np.flatnonzero((queue.remaining > 0) & (queue.best > 0))
    if not len(runnable):
        return Prices(np.ones(kinds), np.full(kinds, _MIN_PRICE_RATIO))
    best, rates = queue.best[runnable], queue.rates[runnable, :kinds]
    remaining, age, workers = queue.remaining[runnable], queue.age[runnable], queue.workers[runnable]
    runs = rates > 0
    completion = queue.completion_times(runnable, np.minimum(rates, best[:, None]))
    per_gpu = queue.utilities(runnable, completion) / workers[:, None]
    high = np.where(runs, per_gpu, 0.0).max(axis=0, initial=0.0)
    slowest = np.where(runs, rates, inf).min(axis=1)
    slots = np.maximum(1.0, np.ceil(remaining / slowest / period)) * workers
    horizon = float((age + remaining / slowest).max()) + float(slots.sum()) * period / max(total, 1)
    eta = max(1.0, total / float(slots.min()))
    at_horizon = queue.utilities(runnable, np.full((len(runnable), 1), horizon))[:, 0]
    least = float((at_horizon / slots).min()) / (4 * eta)
    high = np.where(high > 0, high, high.max(initial=least) or 1.0)
    low = np.minimum((least or np.finfo(float).tiny) * high / high.max(), high / _MIN_PRICE_RATIO)
    return Prices(np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64))


def payoffs(
    job: HadarJob, allocations: tuple[PricedAllocation, ...], utility: Utility
) -> list[tuple[float, PricedAllocation]]:
    """Returns each allocation with its payoff: utility less cost (equation 8)."""
    return [(utility(job, job.completion_time(offer.rate)) - offer.cost, offer) for offer in allocations]


BEAM_WIDTH: Final = 4
"""Default number of states that the dual subroutine follows."""


class RankedQueue:
    """Jobs by utility per GPU, the highest first, with what each is worth at every rate that it can have."""

    def __init__(self, queue: QueueArrays) -> None:
        types, rates = queue.rates.shape[1] // 2, np.column_stack((queue.best, queue.rates))
        completion = queue.completion_times(slice(None), rates)
        worth = queue.utilities(slice(None), completion)
        order = np.lexsort((completion[:, 0], -queue.workers, -worth[:, 0] / queue.workers))
        self.jobs = tuple(queue.jobs[row] for row in order.tolist())
        self._workers = queue.workers[order]
        self.shapes = GangShapes().of_all([job.throughput for job in self.jobs])
        self.worth = worth[order, 1:]
        """Utility at each consolidated rate, then at each spread one; [jobs, 2 types]."""
        self.at_type = np.maximum(self.worth[:, :types], self.worth[:, types:])
        """Utility at the higher of the consolidated and the spread rate on each type; [jobs, types]."""

    @cached_property
    def _row_of(self) -> Mapping[str, int]:
        return {job.job: row for row, job in enumerate(self.jobs)}

    def waiting(self, jobs: Collection[str]) -> list[int]:
        """Returns the jobs, by index, without those named."""
        waits, row_of = np.ones(len(self.jobs), dtype=np.bool_), self._row_of
        waits[[row_of[job] for job in jobs if job in row_of]] = False
        return np.flatnonzero(waits).tolist()

    def fewest_workers(self, rows: Sequence[int]) -> int:
        """Returns the GPUs of the smallest of these jobs; 0 for no jobs."""
        return int(self._workers[rows].min()) if len(rows) else 0

    def offers(self, row: int, state: FreeGpus) -> list[tuple[float, Place]]:
        """Returns the undominated places of a job, the fastest first, each with its payoff."""
        worth = self.worth[row].tolist()
        offers = state.offers(self.jobs[row].throughput, self.shapes[row])
        return [(worth[number] - cost, place) for number, cost, place in offers]


_Admitted = tuple[str, TaskAllocation, Any] | None
"""The last admitted job, its allocation, and those before in the same form."""


@dataclass(eq=False, slots=True)
class _State:
    """A state of the search: the free GPUs, the sum of payoffs so far and the admissions."""

    free: FreeGpus
    payoff: float
    last: _Admitted = None


_ROUNDING: Final = 1e-9
"""Relative, of a cost."""

_ROUNDING_OF_SUMS: Final = 1e-14
"""Relative, of a sum of payoffs; both are far above what rounding comes to."""


@dataclass(slots=True)
class _Beam:
    """The states that are followed, the best first. `least` has for gangs of a shape, by the slowest type of a place,
    the utility below which no job of this shape leads to another state."""

    states: list[_State]
    width: int
    least: dict[GangShape, list[float]] = field(default_factory=dict)

    def admit(self, queue: RankedQueue, row: int) -> bool:
        """Follows the job from every state; returns whether another state is followed then."""
        if self.width == 1:
            return self._admit_where_best(queue, row)
        known: dict[int, tuple[float, _State, Place | None]] = {
            state.free.key: (state.payoff, state, None) for state in self.states
        }
        shape, throughput, worth = queue.shapes[row], queue.jobs[row].throughput, queue.worth[row].tolist()
        for state in self.states:
            free, so_far = state.free, state.payoff
            for number, cost, place in free.offers(throughput, shape):
                payoff = worth[number] - cost
                if payoff > 0:
                    key, total = free.key - place.weight, so_far + payoff
                    other = known.get(key)
                    if other is None or other[0] < total:
                        known[key] = total, state, place
        best = sorted(known.values(), key=itemgetter(0), reverse=True)[: self.width]
        if len(best) == len(self.states) and all(
            place is None and state is own for (_, state, place), own in zip(best, self.states, strict=True)
        ):
            self.least[shape] = self._least(shape)
            return False
        job = queue.jobs[row].job
        self.states = [
            state if place is None else _State(state.free.without(place), total, (job, place.allocation, state.last))
            for total, state, place in best
        ]
        self.least.clear()
        return True

    def _admit_where_best(self, queue: RankedQueue, row: int) -> bool:
        """The same where one state is followed, in less time: the job gets the place that pays it most, if any does."""
        shape, worth, (state,) = queue.shapes[row], queue.worth[row].tolist(), self.states
        best, most = None, state.payoff
        for number, cost, place in state.free.offers(queue.jobs[row].throughput, shape):
            total = state.payoff + (worth[number] - cost)
            if total > most:
                best, most = place, total
        if best is None:
            self.least[shape] = self._least(shape)
            return False
        self.states = [_State(state.free.without(best), most, (queue.jobs[row].job, best.allocation, state.last))]
        self.least.clear()
        return True

    def _least(self, shape: GangShape) -> list[float]:
        """Returns what a job must be worth at a place to pay for it, and to lead to a state that is better than the one
        with the same free GPUs, if there is one, and than the last that is followed."""
        least, of_key = [inf] * len(shape.speed_ranks), {state.free.key: state.payoff for state in self.states}
        last = self.states[-1].payoff if len(self.states) == self.width else -inf
        for state in self.states:
            for place in state.free.places(shape):
                better_than = of_key.get(state.free.key - place.weight, last)
                needed = place.cost + max(0.0, better_than - state.payoff)
                rounding = _ROUNDING * needed + _ROUNDING_OF_SUMS * abs(state.payoff)
                kind = min(place.kinds, key=shape.speed_ranks.__getitem__)
                least[kind] = min(least[kind], needed - rounding)
        return least


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
    ranked = RankedQueue(QueueArrays(queue, servers, utility))
    return admit_paying(ranked, ranked.waiting(()), prices.state(servers, free), beam_width)


def admit_paying(queue: RankedQueue, rows: Sequence[int], free: FreeGpus, beam_width: int) -> dict[str, TaskAllocation]:
    """Returns the same for these of the ranked jobs."""
    smallest = queue.fewest_workers(rows)
    if not rows or free.idle < smallest:
        return {}
    beam = _Beam([_State(free.searched(), 0.0)], beam_width)
    for row, at_type in zip(rows, queue.at_type[list(rows)].tolist(), strict=True):
        least = beam.least.get(queue.shapes[row])
        changed = (least is None or any(map(gt, at_type, least))) and beam.admit(queue, row)
        if changed and all(state.free.idle < smallest for state in beam.states):
            break
    return _admitted(beam.states[0].last)


def fill_idle(
    queue: Sequence[HadarJob], servers: ServerPools, free: Ints, prices: Prices, utility: Utility
) -> dict[str, TaskAllocation]:
    """Returns allocations in free GPUs for jobs that failed the payoff test, since these GPUs would be idle."""
    ranked = RankedQueue(QueueArrays(queue, servers, utility))
    return admit_all(ranked, ranked.waiting(()), prices.state(servers, free))


def admit_all(queue: RankedQueue, rows: Sequence[int], free: FreeGpus) -> dict[str, TaskAllocation]:
    """Returns the same for these of the ranked jobs."""
    allocations: dict[str, TaskAllocation] = {}
    smallest = queue.fewest_workers(rows)
    for row in rows:
        if free.idle < smallest or not free.idle:
            break
        offers = queue.offers(row, free)
        if offers:
            _, place = max(offers, key=lambda offer: offer[0])
            allocations[queue.jobs[row].job] = place.allocation
            free = free.without(place)
    return allocations


def _admitted(last: _Admitted) -> dict[str, TaskAllocation]:
    allocations: dict[str, TaskAllocation] = {}
    while last is not None:
        job, allocation, last = last
        allocations[job] = allocation
    return dict(reversed(allocations.items()))


@dataclass(frozen=True, slots=True)
class HadarScheduler:
    """Decides rounds (algorithm 1).

    `restart_cost` is the seconds that a job loses when it gets other GPUs, or none. `period` is the seconds to the next
    round. The dual subroutine follows `beam_width` states. `work_conserving`: jobs that fail the payoff test get GPUs
    that would be idle. `may_migrate`: running jobs may get other GPUs. `makes_room_for`: the newcomer for which they
    may get others of the same type; for anybody else they restart only on another type.
    """

    make_utility: UtilityFactory = effective_throughput
    restart_cost: float = 10.0
    period: float = 360.0
    beam_width: int = BEAM_WIDTH
    work_conserving: bool = True
    may_migrate: bool = True
    makes_room_for: str = ""

    def decide(
        self, queue: Sequence[HadarJob], servers: ServerPools, running: Mapping[str, TaskAllocation] | None = None
    ) -> dict[str, TaskAllocation]:
        """Returns the allocations of the jobs that run in the coming round; the others wait."""
        return PricedRound(self, queue, servers).decide(running or {})


class PricedRound:
    """One round's jobs, servers and prices."""

    def __init__(self, scheduler: HadarScheduler, queue: Sequence[HadarJob], servers: ServerPools) -> None:
        self._scheduler, self._servers = scheduler, servers
        self._queue = QueueArrays(queue, servers, scheduler.make_utility(queue, servers))
        self._held: tuple[Mapping[str, TaskAllocation], PlacesByRow] | None = None

    @cached_property
    def _prices(self) -> Prices:
        """Only allocations that are looked for have prices, not the worth of those that there are."""
        return _prices_of(self._queue, self._servers, self._scheduler.period)

    @cached_property
    def _ranked(self) -> RankedQueue:
        return RankedQueue(self._queue)

    def decide(self, running: Mapping[str, TaskAllocation]) -> dict[str, TaskAllocation]:
        """Returns the allocations of the jobs that run in the coming round."""
        kept = self.solve(running)
        if not self._scheduler.may_migrate:
            return kept
        if not running:
            return self.exchange(kept, running)
        restarted = self.solve({})
        unmoved = {
            job: running[job]
            for job in restarted
            if job in running and _same_counts(self._servers, restarted[job], running[job])
        }
        solved = [kept, self.solve(unmoved)]
        if (newcomer := self._scheduler.makes_room_for) in restarted and newcomer not in solved[-1]:
            solved.append(self.solve(self._with_room(newcomer, restarted, unmoved)))
        exchanged = [self.exchange(allocations, running) for allocations in solved]
        return max(exchanged, key=lambda allocations: self.total_utility(allocations, running))

    def _with_room(
        self, newcomer: str, restarted: Mapping[str, TaskAllocation], unmoved: Mapping[str, TaskAllocation]
    ) -> dict[str, TaskAllocation]:
        """Returns the place that the newcomer has where all jobs restart, and the unmoved jobs but for those in the way
        there: of these the first to restart are those that are worth least for a GPU."""
        given = {newcomer: restarted[newcomer]}
        free = self._servers.free_after(given.values())
        for job in restarted:  # in the order of worth
            if job in unmoved and all(free[pool] >= gpus for pool, gpus in unmoved[job]):
                given[job] = unmoved[job]
                for pool, gpus in unmoved[job]:
                    free[pool] -= gpus
        return given

    def solve(self, running: Mapping[str, TaskAllocation]) -> dict[str, TaskAllocation]:
        """Returns the running allocations, and new ones for the other jobs."""
        result, scheduler, servers, queue = dict(running), self._scheduler, self._servers, self._ranked
        free = servers.free_after(result.values())
        if free.any():
            waiting, state = queue.waiting(result), self._prices.state(servers, free)
            result |= admit_paying(queue, waiting, state, scheduler.beam_width)
            free = servers.free_after(result.values())
        if scheduler.work_conserving and free.any():
            result |= admit_all(queue, queue.waiting(result), self._prices.state(servers, free))
        return result

    def exchange(
        self, allocations: Mapping[str, TaskAllocation], running: Mapping[str, TaskAllocation]
    ) -> dict[str, TaskAllocation]:
        """Returns the same places, given anew to the jobs with the same request, waiting ones included, so that the
        total utility is highest. A restart costs its part of the next run. Who loses a place may have idle GPUs that
        were of no use to the others."""
        queue, servers, scheduler = self._queue, self._servers, self._scheduler
        places, held = PlacesByRow(queue, allocations), self._held_by_row(running)
        given, gone, jobs = dict[str, TaskAllocation](), set[str](), queue.jobs
        part = min(1.0 / RUN_OVER_RESTART, scheduler.restart_cost / scheduler.period)
        for rows in queue.with_same_request:
            holders = rows[places.has[rows]].tolist()
            if holders and len(rows) > 1:
                new = assign(Exchange(queue, rows, places, held, servers, scheduler.restart_cost, part))
                given |= {jobs[row].job: place for row, place in new.items()}
                gone.update(jobs[row].job for row in holders if row not in new)
        result = {job: place for job, place in allocations.items() if job not in gone} | given
        if scheduler.work_conserving and gone and (free := servers.free_after(result.values())).any():
            ranked = self._ranked
            losers = [row for row in ranked.waiting(result) if ranked.jobs[row].job in gone]
            result |= admit_all(ranked, losers, self._prices.state(servers, free))
        return result

    def _held_by_row(self, running: Mapping[str, TaskAllocation]) -> PlacesByRow:
        """Returns the running allocations by row: once for the same object, since they are compared with several."""
        if self._held is None or self._held[0] is not running:
            self._held = running, PlacesByRow(self._queue, running)
        return self._held[1]

    def total_utility(self, allocations: Mapping[str, TaskAllocation], running: Mapping[str, TaskAllocation]) -> float:
        """Returns the sum of utilities, less a restart for every running job that loses or changes its allocation."""
        queue, cost = self._queue, self._scheduler.restart_cost
        now, held = PlacesByRow(queue, allocations), self._held_by_row(running)
        restarts = [
            held.of_row.get(row, place) != place for row, place in zip(now.rows.tolist(), now.places, strict=True)
        ]
        of_job = np.zeros(len(queue))
        of_job[now.rows] = queue.worth_at(now.rows, now.places, np.where(restarts, cost, 0.0))
        lost = held.rows[~now.has[held.rows]]
        had = held.those_of(lost.tolist())
        of_job[lost] = queue.worth_at(lost, had, cost) - queue.worth_at(lost, had)
        return float(np.cumsum(of_job)[-1]) if len(queue) else 0.0  # one after the other, as a sum in words


def _same_counts(servers: ServerPools, first: TaskAllocation, second: TaskAllocation) -> bool:
    """Returns whether both have the same number of GPUs of each type, so that neither is better."""
    return servers.gpus_by_type(first) == servers.gpus_by_type(second)
