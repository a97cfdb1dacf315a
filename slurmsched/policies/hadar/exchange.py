"""Gives the places of jobs with the same request to those of them, waiting ones included, whose total utility is
highest then: an assignment problem.

The worth of a place to a job depends on its types, and on whether it is one server or several: places of the same offer
are alike, but for the one that a running job has. A small problem is solved as a matrix of jobs and places. A large one
is solved over offers, since the matrix of a hundred thousand jobs would have billions of entries: beginning with the
places as they are, jobs move along circles of offers that gain, as many jobs at once as gain, until no circle does.
Then no other assignment to offers is worth more (Klein, "A primal method for minimal cost flows", 1967).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.policies.hadar.problem import ServerPools, TaskAllocation
from slurmsched.policies.hadar.queue import PlacesByRow, QueueArrays

_TIE: Final = 1e-9
"""Relative, far below any difference of utilities that counts."""

_LARGEST_MATRIX: Final = 1 << 18
"""Entries of jobs times places up to which a problem is solved as a matrix: some hundredths of a second. With four
times as many a decision of `unified` at 1,000 GPUs took four times as long."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The jobs in `rows` of the queue have the same request, `places` are the allocations to give, by who has them now.
    Those in `running` have these GPUs already: on others they lose `restart_cost` seconds, which is a `part` of the
    next run."""

    queue: QueueArrays
    rows: Ints
    places: PlacesByRow
    running: PlacesByRow
    servers: ServerPools
    restart_cost: float
    part: float


def assign(exchange: Exchange) -> dict[int, TaskAllocation]:
    """Returns who gets which of the places, by row. Ties go to who has the place."""
    rows, servers = exchange.rows, exchange.servers
    holders = rows[exchange.places.has[rows]]
    places = exchange.places.those_of(holders.tolist())
    offers = dict[tuple[frozenset[int], int], int]()
    offer_of = np.array([offers.setdefault(servers.offer(place), len(offers)) for place in places], dtype=np.int64)
    worth = _worth(exchange, [*offers])
    is_in = exchange.running.has[rows] | exchange.places.has[rows]
    chosen = _contenders(worth, is_in, len(places))
    contenders = _Contenders.of(exchange, rows[chosen], worth[chosen], (holders, places, offer_of))
    solve = _by_matrix if len(chosen) * len(places) <= _LARGEST_MATRIX else _by_offers
    row_of = rows[chosen].tolist()
    return {row_of[number]: places[column] for number, column in solve(contenders)}


def _worth(exchange: Exchange, offers: Sequence[tuple[frozenset[int], int]]) -> Floats:
    """Returns what each job is worth at each offer, minus infinity where it cannot run; [jobs, offers]."""
    queue, rows, types = exchange.queue, exchange.rows, len(exchange.servers.types)
    of_offer = [[kind + types * (servers > 1) for kind in kinds] for kinds, servers in offers]
    rate = np.column_stack([queue.rates[rows[:, None], columns].min(axis=1) for columns in of_offer])
    delays = np.where(exchange.running.has[rows], exchange.restart_cost, 0.0)
    return np.where(rate > 0, queue.utilities(rows, queue.completion_times(rows, rate, delays)), -inf)


def _contenders(worth: Floats, is_in: Mask, places: int) -> Ints:
    """Returns the jobs, by index, that may get one of so many places in the best assignment: those that are in, and for
    each offer (a column of `worth`) as many of the others as there are places, those to whom it is worth most."""
    others = np.flatnonzero(~is_in)
    best = np.argsort(-worth[others], axis=0, kind="stable")[:places]
    return np.unique(np.concatenate((np.flatnonzero(is_in), others[best].ravel())))


@dataclass(frozen=True, eq=False, slots=True)
class _Contenders:
    """The jobs that may get a place: what they are worth at each offer, [jobs, offers], which place each has (-1 for
    none), and which offer each place is. `own` has the places by column that are those that a running job has, and
    `own_worth` what it is worth there."""

    worth: Floats
    place_of: Ints
    offer_of: Ints
    own: Mapping[int, Sequence[int]]
    own_worth: Floats

    @classmethod
    def of(
        cls, exchange: Exchange, rows: Ints, worth: Floats, given: tuple[Ints, Sequence[TaskAllocation], Ints]
    ) -> _Contenders:
        """`rows` are those of the jobs; `given` has the places to give: who has each now, the place and its offer."""
        queue, running, part = exchange.queue, exchange.running, exchange.part
        holders, places, offer_of = given
        columns = defaultdict[TaskAllocation, list[int]](list)
        for column, place in enumerate(places):
            columns[place].append(column)
        runs = np.flatnonzero(running.has[rows])
        held_places, held = running.those_of(rows[runs].tolist()), np.zeros(len(rows))
        held[runs] = queue.worth_at(rows[runs], held_places)
        worth, own_worth = worth.copy(), held * (1 + part)
        worth[runs] = worth[runs] * (1 - part) + held[runs, None] * part
        own = {row: columns[place] for row, place in zip(runs.tolist(), held_places, strict=True) if place in columns}
        column_of = np.full(len(queue), -1, dtype=np.int64)
        column_of[holders] = np.arange(len(holders))
        return cls(worth, column_of[rows], offer_of, own, own_worth)

    def values(self) -> Floats:
        """Returns what each job is worth at each place; [jobs, places]."""
        values = self.worth[:, self.offer_of]
        for row, columns in self.own.items():
            values[row, columns] = self.own_worth[row]
        has = np.flatnonzero(self.place_of >= 0)
        values[has, self.place_of[has]] *= 1 + _TIE
        return values


def _by_matrix(of: _Contenders) -> Iterator[tuple[int, int]]:
    """Yields the best assignment, as rows and the columns of their places."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 a round in which nobody exchanges starts faster

    rows, columns = linear_sum_assignment(of.values(), maximize=True)
    return zip(rows.tolist(), columns.tolist(), strict=True)


def _by_offers(of: _Contenders) -> Iterator[tuple[int, int]]:
    """Yields the same, but for those who lose a place of their own to another that has the same there."""
    waiting = of.worth.shape[1]
    worth, has = np.column_stack((of.worth, np.zeros(len(of.worth)))), np.flatnonzero(of.place_of >= 0)
    entitled = _entitled(of)
    worth[entitled, of.offer_of[[of.own[row][0] for row in entitled]]] = of.own_worth[entitled]
    worth[has, of.offer_of[of.place_of[has]]] *= 1 + _TIE
    at = np.full(len(worth), waiting)
    at[has] = of.offer_of[of.place_of[has]]
    _improve(worth, at)
    return _places(of, entitled, at, waiting)


def _entitled(of: _Contenders) -> list[int]:
    """Returns the running jobs that may count on a place that they have: where fewer of these are given than jobs have
    the same one, those who would lose most."""
    rows, first = np.array([*of.own], dtype=np.int64), [columns[0] for columns in of.own.values()]
    gain = of.own_worth[rows] - of.worth[rows, of.offer_of[first]]
    left, entitled = {columns[0]: len(columns) for columns in of.own.values()}, list[int]()
    for number in np.argsort(-gain, kind="stable").tolist():
        if left[first[number]]:
            left[first[number]] -= 1
            entitled.append(int(rows[number]))
    return entitled


def _places(of: _Contenders, entitled: Sequence[int], at: Ints, waiting: int) -> Iterator[tuple[int, int]]:
    """Yields a place of its offer for each job that has one: its own if it can be, else the one that it has now."""
    free, place_of, offer_of = dict.fromkeys(range(len(of.offer_of))), of.place_of.tolist(), of.offer_of.tolist()
    rest, offers = dict.fromkeys(np.flatnonzero(at < waiting).tolist()), at.tolist()
    wishes = chain(
        ((row, (place_of[row],)) for row in entitled if place_of[row] in of.own[row]),
        ((row, of.own[row]) for row in chain(entitled, of.own)),
        ((row, (place_of[row],)) for row in [*rest]),
    )
    for row, columns in wishes:
        if row in rest:
            offer = offers[row]
            for column in columns:
                if column in free and offer_of[column] == offer:
                    del free[column], rest[row]
                    yield row, column
                    break
    left = defaultdict[int, list[int]](list)
    for column in reversed(free):
        left[offer_of[column]].append(column)
    yield from ((row, left[offers[row]].pop()) for row in rest)


_MOST_CIRCLES: Final = 2000
"""Circles after which the search ends, however much others would gain."""

_LEAST_GAIN: Final = 1e-12
"""Relative to the highest worth."""


def _improve(worth: Floats, at: Ints) -> None:
    """Moves jobs along circles of offers until none gains. The last column of `worth` is to wait; `at` has the offer of
    each job, and is changed."""
    nodes, moves = worth.shape[1], _Moves(worth)
    least = _LEAST_GAIN * float(np.abs(worth[np.isfinite(worth)]).max(initial=0.0))
    gains = np.full((nodes, nodes), -inf)
    stale = set(range(nodes))
    for _ in range(_MOST_CIRCLES):
        for node in stale:
            gains[node] = moves.best_gains(at, node)
        circle = _gaining_circle(gains, least)
        if not circle:
            return
        edges = [*zip(circle, circle[1:] + circle[:1], strict=True)]
        movers = [moves.by_gain(at, here, there) for here, there in edges]
        together = min(map(len, movers))
        gained = np.sum([moves.gain(rows[:together], *edge) for rows, edge in zip(movers, edges, strict=True)], axis=0)
        count = max(int(np.count_nonzero(gained > least)), 1)
        for rows, (_, there) in zip(movers, edges, strict=True):
            at[rows[:count]] = there
        stale = set(circle)


class _Moves:
    """What jobs gain by moves from one offer to another."""

    def __init__(self, worth: Floats) -> None:
        self._worth: Floats = np.ascontiguousarray(worth.T)
        """[offers, jobs]"""
        self._order: dict[tuple[int, int], Ints] = {}
        """By move the jobs that it is possible for, those that gain most first: sorted once, wherever they are."""

    def gain(self, rows: Ints, here: int, there: int) -> Floats:
        """Returns what each of these jobs gains."""
        return np.asarray(self._worth[there, rows] - self._worth[here, rows], dtype=np.float64)

    def best_gains(self, at: Ints, here: int) -> Floats:
        """Returns the most that a job here gains by each move; minus infinity to stay."""
        rows = np.flatnonzero(at == here)
        best = (self._worth[:, rows] - self._worth[here, rows]).max(axis=1, initial=-inf)
        best[here] = -inf
        return np.asarray(best, dtype=np.float64)

    def by_gain(self, at: Ints, here: int, there: int) -> Ints:
        """Returns the jobs here that can move there, those that gain most first."""
        if (here, there) not in self._order:
            possible = np.flatnonzero(self._worth[there] > -inf)
            order = np.argsort(-self.gain(possible, here, there), kind="stable")
            self._order[here, there] = possible[order]
        order = self._order[here, there]
        return np.asarray(order[at[order] == here], dtype=np.int64)


def _gaining_circle(gains: Floats, least: float) -> list[int]:
    """Returns offers such that one job of each can move to the next, and one of the last to the first, for a gain of
    more than `least` together; empty where there are none. (Bellman and Ford's search for a circle.)"""
    both = gains + gains.T
    here, there = np.unravel_index(int(both.argmax()), both.shape)
    if both[here, there] > least:
        return [int(here), int(there)]
    nodes = len(gains)
    total, before, changed = np.zeros(nodes), np.full(nodes, -1), -1
    for _ in range(nodes + 1):
        by = total[:, None] + gains
        best = by.max(axis=0)
        better = best > total + least
        if not better.any():
            return []
        before[better], total = by.argmax(axis=0)[better], np.where(better, best, total)
        changed = int(np.flatnonzero(better)[0])
    for _ in range(nodes):
        changed = int(before[changed])
    circle, node = [changed], int(before[changed])
    while node != changed:
        circle.append(node)
        node = int(before[node])
    return circle[::-1]
