"""FIND_ALLOC of Hadar (Sultana et al., 2025, algorithm 2, lines 24 to 36): where a gang can be, and what that costs.

Servers are alike if their pools have the same types, free GPUs and prices: they form a class, of which the first with
GPUs for a gang is the only one to look at. So a place is found in a time that grows with the classes, a few dozen, and
not with the servers. Sets of servers are integers with a bit for each: a state of the search shares all that it does
not change with the state that it comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import merge
from itertools import groupby
from math import inf
from operator import itemgetter
from random import Random
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.policies.hadar.problem import GangThroughput, ServerPools, TaskAllocation

PoolPrice = Callable[[int, int, int], float]
"""The price of a GPU in a pool of this type with so many GPUs in all, and so many of them free."""

_Pool = tuple[int, int, int, float]
"""The type of a pool, its GPUs, those of them that are free, and the price of one."""


@dataclass(frozen=True, slots=True)
class PricedAllocation:
    """An allocation for a gang, its rate in iterations per second and the sum of the prices of its GPUs."""

    allocation: TaskAllocation
    rate: float
    cost: float


@dataclass(frozen=True, eq=False, slots=True)
class ServerClass:
    """Servers that are alike, by their pools. `classes` are all that are known: there is one object for each."""

    pools: tuple[_Pool, ...]
    price: PoolPrice
    classes: dict[tuple[_Pool, ...], ServerClass]
    _taken: dict[tuple[int, int], ServerClass] = field(default_factory=dict)

    def without(self, position: int, gpus: int) -> ServerClass:
        """Returns the class of such a server once so many GPUs of its pool at this position are taken."""
        known = self._taken.get((position, gpus))
        if known is None:
            kind, capacity, free, _ = self.pools[position]
            left = (kind, capacity, free - gpus, self.price(kind, capacity, free - gpus))
            pools = (*self.pools[:position], left, *self.pools[position + 1 :])
            known = self.classes.get(pools) or self.classes.setdefault(
                pools, ServerClass(pools, self.price, self.classes)
            )
            self._taken[position, gpus] = known
        return known


_Key = tuple[float, int, int]
"""What the order of pools depends on, the cheapest first: price, speed rank of the type, minus the free GPUs."""


_UsablePool = tuple[_Key, int, int, int, float]
"""The key of a pool, its position on its server, its type, the GPUs that a gang can use, and their price."""


@dataclass(frozen=True, slots=True)
class _Usable:
    """What a gang can use of a server of one class: the pools in the order of their keys, and the GPUs in all. `alone`
    has what the server alone costs the gang, infinite if it has too few GPUs, these, and the key of its first pool."""

    pools: tuple[_UsablePool, ...]
    gpus: int
    alone: tuple[float, int, _Key]


class _AdmittedTypes:
    """Some of the types that a gang can run on, and what it can use of servers of each class."""

    def __init__(self, shape: GangShape, kinds: Sequence[int]) -> None:
        self._shape, self.kinds = shape, frozenset(kinds)
        self._usable: dict[ServerClass, _Usable | None] = {}

    def usable(self, servers: ServerClass) -> _Usable | None:
        """Returns what the gang can use of such a server; None for nothing."""
        try:
            return self._usable[servers]
        except KeyError:
            known = self._usable[servers] = self._find_usable(servers)
            return known

    def _find_usable(self, servers: ServerClass) -> _Usable | None:
        shape, pools = self._shape, list[_UsablePool]()
        most = -(-shape.workers // shape.min_servers) if shape.min_servers > 1 else inf
        for position, (kind, _, idle, price) in enumerate(servers.pools):
            free = int(min(idle, most))
            if kind in self.kinds and free > 0:
                pools.append(((price, shape.speed_ranks[kind], -free), position, kind, free, price))
        if not pools:
            return None
        pools.sort(key=itemgetter(0))
        gpus, left, cost = sum(pool[3] for pool in pools), shape.workers, 0.0
        for *_, free, price in pools:
            cost += min(free, left) * price
            left -= min(free, left)
        return _Usable(tuple(pools), gpus, (cost if left <= 0 else inf, gpus, pools[0][0]))


class GangShape:
    """What the places of a gang depend on: its request, and by type how many types are slower, -1 where it cannot run.
    Gangs with different rates have it in common."""

    def __init__(
        self, workers: int, speed_ranks: tuple[int, ...], min_servers: int, max_servers: int | None, mixes_types: bool
    ) -> None:
        self.workers, self.speed_ranks, self.min_servers = workers, speed_ranks, min_servers
        self.max_servers = inf if max_servers is None else max_servers
        by_rate = sorted(
            (kind for kind, rank in enumerate(speed_ranks) if rank >= 0), key=lambda kind: -speed_ranks[kind]
        )
        self.admitted = tuple(
            _AdmittedTypes(self, by_rate[: at + 1] if mixes_types else [kind]) for at, kind in enumerate(by_rate)
        )
        """The fastest one, two, ... types if the gang mixes types, else each type alone."""


class GangShapes:
    """The shapes of a round's gangs, one object for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], GangShape] = {}

    def of(self, throughput: GangThroughput) -> GangShape:
        ascending = sorted({rate for rate in throughput.consolidated if rate > 0})
        ranks = tuple(ascending.index(rate) if rate > 0 else -1 for rate in throughput.consolidated)
        shape = throughput.workers, ranks, throughput.min_servers, throughput.max_servers, throughput.mixes_types
        if shape not in self._known:
            self._known[shape] = GangShape(*shape)
        return self._known[shape]


@dataclass(frozen=True, slots=True)
class Place:
    """An allocation and the sum of the prices of its GPUs; the gang's rate follows from the types and servers.

    `taken` has for each pool the server, its class, the position of the pool there and the GPUs.
    """

    allocation: TaskAllocation
    kinds: tuple[int, ...]
    is_consolidated: bool
    cost: float
    taken: tuple[tuple[int, ServerClass, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The pools of each server, and of each pool the server and its position there. Servers are numbered in the order
    of their first pools. `factors` are random numbers by pool."""

    pools_of: tuple[tuple[int, ...], ...]
    at: tuple[tuple[int, int], ...]
    factors: tuple[int, ...]


_KEY_BITS: Final = 128


@lru_cache(maxsize=4)
def _layout(server_of: bytes) -> _Layout:
    pools_of = defaultdict[int, list[int]](list)
    for pool, server in enumerate(np.frombuffer(server_of, dtype=np.int64).tolist()):
        pools_of[server].append(pool)
    at = {pool: (server, place) for server, of in enumerate(pools_of.values()) for place, pool in enumerate(of)}
    random = Random(0)  # noqa: S311 the numbers tell states apart, they are no secrets
    factors = tuple(random.getrandbits(_KEY_BITS) for _ in at)
    return _Layout(tuple(map(tuple, pools_of.values())), tuple(at[pool] for pool in range(len(at))), factors)


@dataclass(frozen=True, eq=False, slots=True)
class FreeGpus:
    """The free GPUs of all servers at one moment: by class the servers, as an integer with a bit for each.

    `key` is equal for equal free GPUs and, but for one case in 2^128, differs for others: it is the sum of a random
    number for each pool times its free GPUs. `idle` are all free GPUs.
    """

    classes: Mapping[ServerClass, int]
    idle: int
    key: int
    _layout: _Layout
    _places: dict[GangShape, tuple[Place, ...]] = field(default_factory=dict)
    _of_types: dict[_AdmittedTypes, tuple[Place, ...]] = field(default_factory=dict)
    """Places on some types, which are those of the state before where no server with one of these has changed."""

    @classmethod
    def of(cls, servers: ServerPools, free: Ints, price: Floats, price_of: PoolPrice) -> FreeGpus:
        """`free` and `price` are by pool; `price_of` tells the prices of pools once more or less of them is free."""
        layout = _layout(np.ascontiguousarray(servers.server_of, dtype=np.int64).tobytes())
        columns = (servers.type_of.tolist(), servers.capacity.tolist(), free.tolist(), price.tolist())
        pools = list(zip(*columns, strict=True))
        members = defaultdict[tuple[_Pool, ...], list[int]](list)
        for server, of_server in enumerate(layout.pools_of):
            members[tuple(pools[pool] for pool in of_server)].append(server)
        known = dict[tuple[_Pool, ...], ServerClass]()
        known.update((alike, ServerClass(alike, price_of, known)) for alike in members)
        key = sum(factor * gpus for factor, gpus in zip(layout.factors, free.tolist(), strict=True))
        classes = {known[alike]: _as_bits(numbers, len(layout.pools_of)) for alike, numbers in members.items()}
        return cls(classes, int(free.sum()), key % (1 << _KEY_BITS), layout)

    def key_without(self, allocation: TaskAllocation) -> int:
        """Returns the key of the state in which these GPUs are taken."""
        factors, key = self._layout.factors, self.key
        for pool, gpus in allocation:
            key -= factors[pool] * gpus
        return key % (1 << _KEY_BITS)

    def without(self, place: Place) -> FreeGpus:
        """Returns the state in which this place is taken."""
        classes, left = dict(self.classes), dict[int, tuple[ServerClass, ServerClass]]()
        for server, servers, position, gpus in place.taken:
            before, now = left.get(server, (servers, servers))
            left[server] = before, now.without(position, gpus)
        for server, (before, now) in left.items():
            others = classes[before] ^ (1 << server)
            if others:
                classes[before] = others
            else:
                del classes[before]
            classes[now] = classes.get(now, 0) | (1 << server)
        taken = sum(gpus for _, gpus in place.allocation)
        changed = {pool[0] for before, _ in left.values() for pool in before.pools}
        unchanged = {some: places for some, places in self._of_types.items() if some.kinds.isdisjoint(changed)}
        return FreeGpus(
            classes, self.idle - taken, self.key_without(place.allocation), self._layout, _of_types=unchanged
        )

    def with_released(self, allocation: TaskAllocation) -> FreeGpus:
        """Returns the state in which these GPUs are free too."""
        taken = list[tuple[int, ServerClass, int, int]]()
        for pool, gpus in allocation:
            server, position = self._layout.at[pool]
            servers = next(alike for alike, members in self.classes.items() if members >> server & 1)
            taken.append((server, servers, position, -gpus))
        released = tuple((pool, -gpus) for pool, gpus in allocation)
        return self.without(Place(released, (), False, 0.0, tuple(taken)))

    def places(self, shape: GangShape) -> tuple[Place, ...]:
        """Returns the candidates for a gang, of those with the same types on one or on several servers the cheapest."""
        known = self._places.get(shape)
        if known is None:
            known = self._places[shape] = self._find_places(shape) if self.idle >= shape.workers else ()
        return known

    def _find_places(self, shape: GangShape) -> tuple[Place, ...]:
        cheapest: dict[tuple[tuple[int, ...], bool], Place] = {}
        for admitted in shape.admitted:
            found = self._of_types.get(admitted)
            if found is None:
                found = self._of_types[admitted] = self._find_places_on(shape, admitted)
            for place in found:
                known = cheapest.get((place.kinds, place.is_consolidated))
                if known is None or place.cost < known.cost:
                    cheapest[place.kinds, place.is_consolidated] = place
        return tuple(cheapest.values())

    def _find_places_on(self, shape: GangShape, admitted: _AdmittedTypes) -> tuple[Place, ...]:
        usable = [
            (some, servers, members)
            for servers, members in self.classes.items()
            if (some := admitted.usable(servers)) is not None
        ]
        return tuple(self._candidates(shape, usable)) if _suffice(usable, shape.workers) else ()

    def _candidates(self, shape: GangShape, usable: Sequence[_Alike]) -> Iterator[Place]:
        """Yields the cheapest server that holds the whole gang, else the fewest servers; then the cheapest GPUs
        anywhere, unless that is the same."""
        single = None
        some, servers, members = self._first(usable, [alike[0].alone for alike in usable])
        if some.alone[0] < inf:
            single = self._place(shape, self._of_server(some, servers, _lowest(members)))
            if single is not None:
                yield single
        elif (fewest := self._place(shape, self._largest_first(usable))) is not None:
            yield fewest
        (_, _, kind, free, _), *_ = self._first(usable, [alike[0].pools[0][0] for alike in usable])[0].pools
        if single is None or single.kinds != (kind,) or free < shape.workers:
            anywhere = self._place(shape, self._cheapest_first(usable))
            if anywhere is not None:
                yield anywhere

    def _first(self, usable: Sequence[_Alike], order: Sequence[tuple[object, ...]]) -> _Alike:
        """Returns those for which `order` is lowest, of equal ones those with the first pool by number."""
        lowest = min(order)
        first = [alike for alike, own in zip(usable, order, strict=True) if own == lowest]
        if len(first) == 1:
            return first[0]
        return min(first, key=lambda alike: self._layout.pools_of[_lowest(alike[2])][alike[0].pools[0][1]])

    def _of_server(self, some: _Usable, servers: ServerClass, server: int) -> Iterator[_FreePool]:
        """Yields the pools of this server, the cheapest first."""
        of_server = self._layout.pools_of[server]
        for _, position, kind, free, price in some.pools:
            yield of_server[position], server, servers, position, kind, free, price

    def _largest_first(self, usable: Sequence[_Alike]) -> Iterator[_FreePool]:
        """Yields the pools server by server, those with most GPUs first, then by number."""
        in_order = sorted(usable, key=lambda alike: -alike[0].gpus)
        for _, of_size in groupby(in_order, key=lambda alike: alike[0].gpus):
            each = [_one_by_one(*alike) for alike in of_size]
            for server, some, servers in each[0] if len(each) == 1 else merge(*each, key=itemgetter(0)):
                yield from self._of_server(some, servers, server)

    def _cheapest_first(self, usable: Sequence[_Alike]) -> Iterator[_FreePool]:
        """Yields the pools by price; of equal ones those of the slower type, with more GPUs, then by number."""
        entries = [(pool, servers, members) for some, servers, members in usable for pool in some.pools]
        entries.sort(key=lambda entry: entry[0][0])
        for _, group in groupby(entries, key=lambda entry: entry[0][0]):
            alike = [self._pools_by_number(*entry) for entry in group]
            yield from alike[0] if len(alike) == 1 else merge(*alike, key=itemgetter(0))

    def _pools_by_number(self, pool: _UsablePool, servers: ServerClass, members: int) -> Iterator[_FreePool]:
        _, position, kind, free, price = pool
        for server in _numbers(members):
            yield self._layout.pools_of[server][position], server, servers, position, kind, free, price

    @staticmethod
    def _place(shape: GangShape, in_order: Iterator[_FreePool]) -> Place | None:
        """Returns the gang's place in the first of these pools; None if they are too few, or on too many servers."""
        left, found = shape.workers, list[tuple[_FreePool, int]]()
        for pool in in_order:
            gpus = min(pool[5], left)
            found.append((pool, gpus))
            left -= gpus
            if not left:
                break
        on_servers = len({pool[1] for pool, _ in found})
        if left or not shape.min_servers <= on_servers <= shape.max_servers:
            return None
        return Place(
            tuple(sorted((pool[0], gpus) for pool, gpus in found)),
            tuple(sorted({pool[4] for pool, _ in found})),
            on_servers <= 1,
            _cost(tuple(gpus for _, gpus in found), tuple(pool[6] for pool, _ in found)),
            tuple((pool[1], pool[2], pool[3], gpus) for pool, gpus in found),
        )


_Alike = tuple[_Usable, ServerClass, int]
"""Servers of one class with what a gang can use of each."""

_FreePool = tuple[int, int, ServerClass, int, int, int, float]
"""A pool, its server, the class of that, the position there, the type, the GPUs that a gang can use, their price."""


def _suffice(usable: Iterable[_Alike], workers: int) -> bool:
    """Returns whether these servers have GPUs for so many workers."""
    left = workers
    for some, _, members in usable:
        left -= some.gpus * members.bit_count()
        if left <= 0:
            return True
    return False


def _lowest(members: int) -> int:
    """Returns the number of the lowest bit."""
    return (members & -members).bit_length() - 1


def _numbers(members: int) -> Iterator[int]:
    """Yields the numbers of the bits, ascending."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def _one_by_one(some: _Usable, servers: ServerClass, members: int) -> Iterator[tuple[int, _Usable, ServerClass]]:
    return ((server, some, servers) for server in _numbers(members))


def _as_bits(numbers: Sequence[int], count: int) -> int:
    """Returns the integer with these bits, of so many."""
    bits = np.zeros(count, dtype=np.bool_)
    bits[numbers] = True
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


@lru_cache(maxsize=4096)
def _cost(gpus: tuple[int, ...], prices: tuple[float, ...]) -> float:
    return gpus[0] * prices[0] if len(gpus) == 1 else float(np.array(gpus) @ np.array(prices))


def find_alloc(
    throughput: GangThroughput, servers: ServerPools, free: Ints, price: Floats
) -> tuple[PricedAllocation, ...]:
    """Returns the undominated allocations, the fastest first: each is cheaper than all faster ones
    (FIND_ALLOC, algorithm 2, lines 24 to 36).

    Types are admitted one after the other, from the fastest. For a given slowest type only the cost differs, so the
    candidates are the cheapest server that holds the whole gang, the fewest servers, and the cheapest GPUs anywhere; of
    GPUs with the same price the slower, since faster ones do not speed up the gang.
    """
    state = FreeGpus.of(servers, free, price, lambda *_: 0.0)
    return tuple(
        PricedAllocation(place.allocation, rate, place.cost)
        for _, rate, place in undominated(throughput, state.places(GangShapes().of(throughput)))
    )


def undominated(throughput: GangThroughput, places: Sequence[Place]) -> list[tuple[int, float, Place]]:
    """Returns the places at which the gang is faster than at all cheaper ones, the fastest first, with the gang's rate
    there, and the number of that among its consolidated rates followed by its spread ones."""
    rates, types = (*throughput.consolidated, *throughput.spread), len(throughput.consolidated)
    offers = list[tuple[float, float, int, Place]]()
    for place in places:
        kinds = place.kinds if place.is_consolidated else [types + kind for kind in place.kinds]
        slowest = kinds[0] if len(kinds) == 1 else min(kinds, key=rates.__getitem__)
        offers.append((-rates[slowest], place.cost, slowest, place))
    if len(offers) > 1:
        offers.sort(key=itemgetter(0, 1))
    kept: list[tuple[int, float, Place]] = []
    for slowness, cost, rate_number, place in offers:
        if slowness < 0 and (not kept or cost < kept[-1][2].cost):
            kept.append((rate_number, -slowness, place))
    return kept
