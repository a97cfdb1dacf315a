"""FIND_ALLOC of Hadar (Sultana et al., 2025, algorithm 2, lines 24 to 36): where a gang can be, and what that costs.

Servers are alike if their pools have the same types, free GPUs and prices: they form a class, of which the first with
GPUs for a gang is the only one to look at. So a place is found in a time that grows with the classes, a few dozen, and
not with the servers. Sets of servers are integers with a bit for each: a state of the search shares all that it does
not change with the state that it comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from slurmsched.policies.hadar.servers import (
    AdmittedTypes,
    GangShape,
    GangShapes,
    Pool,
    PoolPrice,
    ServerClass,
    Usable,
    UsablePool,
)


@dataclass(frozen=True, slots=True)
class PricedAllocation:
    """An allocation for a gang, its rate in iterations per second and the sum of the prices of its GPUs."""

    allocation: TaskAllocation
    rate: float
    cost: float


@dataclass(eq=False, slots=True)
class Place:
    """An allocation and the sum of the prices of its GPUs; the gang's rate follows from the types and servers.

    `taken` has for each pool the server, its class, the position of the pool there and the GPUs. `weight` is what the
    allocation takes from the key of free GPUs, `gpus` are its GPUs, and `group` is the group of its servers, -1 for
    servers of several groups.
    """

    allocation: TaskAllocation
    kinds: tuple[int, ...]
    is_consolidated: bool
    cost: float
    taken: tuple[tuple[int, ServerClass, int, int], ...]
    weight: int
    gpus: int
    group: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The pools of each server, and of each pool the server and its position there. Servers are numbered in the order
    of their first pools. `factors` are random numbers by pool."""

    pools_of: tuple[tuple[int, ...], ...]
    at: tuple[tuple[int, int], ...]
    factors: tuple[int, ...]

    def weight(self, allocation: TaskAllocation) -> int:
        """Returns what these GPUs add to the key of free GPUs."""
        return sum(self.factors[pool] * gpus for pool, gpus in allocation)


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
class _Groups:
    """Which types have servers in common: these form a group, and what is taken from it changes no other group."""

    layout: _Layout
    of_kind: Mapping[int, int]
    _of_types: dict[AdmittedTypes, tuple[int, ...]] = field(default_factory=dict)
    _pools_for: dict[GangShape, Sequence[tuple[int, tuple[int, int]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: _Layout, servers: Iterable[tuple[Pool, ...]]) -> _Groups:
        groups = list[set[int]]()
        for kinds in {frozenset(pool[0] for pool in pools) for pools in servers}:
            together = [group for group in groups if not group.isdisjoint(kinds)]
            groups = [group for group in groups if group.isdisjoint(kinds)] + [set(kinds).union(*together)]
        ordered = sorted(groups, key=min)
        return cls(layout, {kind: number for number, group in enumerate(ordered) for kind in group})

    def of_types(self, some: AdmittedTypes) -> tuple[int, ...]:
        """Returns the groups that have servers of these types."""
        known = self._of_types.get(some)
        if known is None:
            known = tuple(sorted({self.of_kind[kind] for kind in some.kinds if kind in self.of_kind}))
            self._of_types[some] = known
        return known

    def pools_for(self, shape: GangShape) -> Sequence[tuple[int, tuple[int, int]]]:
        """Returns for a gang in a single pool the group, the type and the GPUs of each type, the fastest first."""
        known = self._pools_for.get(shape)
        if known is None:
            kinds = (kind for kind in shape.kinds if kind in self.of_kind)
            known = self._pools_for[shape] = [(self.of_kind[kind], (kind, shape.workers)) for kind in kinds]
        return known

    def place(self, shape: GangShape, in_order: Iterator[_FreePool]) -> Place | None:
        """Returns the gang's place in the first of these pools; None if they are too few, or on too many servers."""
        left, found = shape.workers, list[tuple[_FreePool, int]]()
        for pool in in_order:
            gpus = min(pool[5], left)
            found.append((pool, gpus))
            left -= gpus
            if not left:
                break
        on_servers = 1 if len(found) == 1 else len({pool[1] for pool, _ in found})
        if left or not shape.min_servers <= on_servers <= shape.max_servers:
            return None
        if len(found) == 1:
            ((number, server, servers, position, kind, _, price), gpus) = found[0]
            return self._in_one_pool((number, server, servers, position), kind, gpus, _cost((gpus,), (price,)))
        allocation = tuple(sorted((pool[0], gpus) for pool, gpus in found))
        return Place(
            allocation,
            tuple(sorted({pool[4] for pool, _ in found})),
            on_servers <= 1,
            _cost(tuple(gpus for _, gpus in found), tuple(pool[6] for pool, _ in found)),
            tuple((pool[1], pool[2], pool[3], gpus) for pool, gpus in found),
            self.layout.weight(allocation),
            shape.workers,
            self.group_of(pool[4] for pool, _ in found),
        )

    def cheapest_pool(self, group: _FreeGroup, kind: int, gpus: int) -> Offer | None:
        """Returns the cheapest pool of this type with so many GPUs, of equal ones that with least free GPUs, then by
        number."""
        pools_of, best, least = self.layout.pools_of, None, (inf, 0, inf)
        for servers, members in group.classes.items():
            held = servers.of_kind.get(kind)
            if held is None or held[1] < gpus:
                continue
            price, free, position = held
            order = gpus * price, free, price
            if order <= least:
                server = _lowest(members)
                found = pools_of[server][position], server, servers, position
                if order < least or best is None or found[0] < best[0]:
                    best, least = found, order
        if best is None:
            return None
        return kind, least[0], self._in_one_pool(best, kind, gpus, least[0])

    def _in_one_pool(self, pool: tuple[int, int, ServerClass, int], kind: int, gpus: int, cost: float) -> Place:
        """Returns the place of so many GPUs in one pool: its number, server, that server's class and position there."""
        number, server, servers, position = pool
        taken, weight = ((server, servers, position, gpus),), self.layout.factors[number] * gpus
        return Place(((number, gpus),), (kind,), True, cost, taken, weight, gpus, self.of_kind[kind])

    def group_of(self, kinds: Iterable[int]) -> int:
        """Returns the group of these types; -1 if they are of several."""
        groups = {self.of_kind[kind] for kind in kinds}
        return groups.pop() if len(groups) == 1 else -1


@dataclass(eq=False, slots=True)
class _FreeGroup:
    """The free GPUs of a group at one moment: by class the servers, as an integer with a bit for each. Many states of
    the search have it in common."""

    classes: Mapping[ServerClass, int]
    places: dict[AdmittedTypes, tuple[Place, ...]] = field(default_factory=dict)
    cheapest: dict[tuple[int, int], Offer | None] = field(default_factory=dict)
    """By type and GPUs the cheapest pool with so many."""
    _without: dict[Place, _FreeGroup] = field(default_factory=dict)

    def without(self, place: Place) -> _FreeGroup:
        """Returns the group once this place of it is taken, the same object for the same place."""
        known = self._without.get(place)
        if known is None:
            known = self._without[place] = self.without_servers(place.taken)
        return known

    def without_servers(self, taken: Iterable[tuple[int, ServerClass, int, int]]) -> _FreeGroup:
        """Returns the group once these GPUs of its servers are taken, which are as in `Place`."""
        classes = dict(self.classes)
        left: dict[int, tuple[ServerClass, ServerClass]] = {}
        for server, servers, position, gpus in taken:
            before, now = left.get(server, (servers, servers))
            left[server] = before, now.without(position, gpus)
        for server, (before, now) in left.items():
            bit = 1 << server
            others = classes[before] ^ bit
            if others:
                classes[before] = others
            else:
                del classes[before]
            classes[now] = classes.get(now, 0) | bit
        return _FreeGroup(classes)


Offer = tuple[int, float, Place]
"""The number of the type's rate among a gang's consolidated rates followed by its spread ones, the cost, the place."""


@dataclass(eq=False, slots=True)
class FreeGpus:
    """The free GPUs of all servers at one moment, group by group. It does not change.

    `key` is equal for equal free GPUs and, but for one case in 2^128, differs for others: it is the sum of a random
    number for each pool times its free GPUs. `idle` are all free GPUs.
    """

    groups: tuple[_FreeGroup, ...]
    idle: int
    key: int
    _groups: _Groups
    _places: dict[GangShape, tuple[Place, ...]] = field(default_factory=dict)
    _offers: dict[GangShape, tuple[Offer, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, servers: ServerPools, free: Ints, price: Floats, price_of: PoolPrice) -> FreeGpus:
        """`free` and `price` are by pool; `price_of` tells the prices of pools once more or less of them is free."""
        layout = _layout(np.ascontiguousarray(servers.server_of, dtype=np.int64).tobytes())
        columns = (servers.type_of.tolist(), servers.capacity.tolist(), free.tolist(), price.tolist())
        pools = list(zip(*columns, strict=True))
        members = defaultdict[tuple[Pool, ...], list[int]](list)
        for server, of_server in enumerate(layout.pools_of):
            members[tuple(pools[pool] for pool in of_server)].append(server)
        groups, known = _Groups.of(layout, members), dict[tuple[Pool, ...], ServerClass]()
        known.update((alike, ServerClass(alike, price_of, known)) for alike in members)
        classes: list[dict[ServerClass, int]] = [{} for _ in set(groups.of_kind.values())]
        for alike, numbers in members.items():
            classes[groups.of_kind[alike[0][0]]][known[alike]] = _as_bits(numbers, len(layout.pools_of))
        key = layout.weight(tuple(enumerate(free.tolist())))
        return cls(tuple(map(_FreeGroup, classes)), int(free.sum()), key, groups)

    def without(self, place: Place) -> FreeGpus:
        """Returns the state in which this place is taken."""
        groups = [*self.groups]
        if place.group >= 0:
            groups[place.group] = groups[place.group].without(place)
        else:
            by_group = defaultdict[int, list[tuple[int, ServerClass, int, int]]](list)
            for one in place.taken:
                by_group[self._groups.group_of(pool[0] for pool in one[1].pools)].append(one)
            for number, taken in by_group.items():
                groups[number] = groups[number].without_servers(taken)
        return FreeGpus(tuple(groups), self.idle - place.gpus, self.key - place.weight, self._groups)

    def with_released(self, allocation: TaskAllocation) -> FreeGpus:
        """Returns the state in which these GPUs are free too."""
        taken, layout = list[tuple[int, ServerClass, int, int]](), self._groups.layout
        for pool, gpus in allocation:
            server, position = layout.at[pool]
            servers = next(
                alike for group in self.groups for alike, members in group.classes.items() if members >> server & 1
            )
            taken.append((server, servers, position, -gpus))
        released = tuple((pool, -gpus) for pool, gpus in allocation)
        gpus, weight = sum(gpus for _, gpus in released), layout.weight(released)
        return self.without(Place(released, (), False, 0.0, tuple(taken), weight, gpus, -1))

    def places(self, shape: GangShape) -> tuple[Place, ...]:
        """Returns the candidates for a gang, of those with the same types on one or on several servers the cheapest."""
        known = self._places.get(shape)
        if known is None:
            known = self._places[shape] = self._find_places(shape) if self.idle >= shape.workers else ()
        return known

    def searched(self) -> FreeGpus:
        """Returns the same state, which does not keep what a search finds alive."""
        return FreeGpus(tuple(_FreeGroup(group.classes) for group in self.groups), self.idle, self.key, self._groups)

    def offers(self, throughput: GangThroughput, shape: GangShape) -> Sequence[Offer]:
        """Returns the undominated places of a gang of this shape, the fastest first."""
        if shape.in_one_pool:
            return self._offers_of_pools(shape)
        known = self._offers.get(shape)
        if known is None:
            places = self.places(shape)
            if not shape.is_ranked and places:
                return [(number, place.cost, place) for number, _, place in undominated(throughput, places)]
            known = self._offers[shape] = tuple(_undominated_by_rank(shape, places))
        return known

    def _offers_of_pools(self, shape: GangShape) -> Sequence[Offer]:
        """Returns the same for a gang that is placed in a single pool."""
        least, groups = inf, self._groups
        found: list[Offer] = []  # a call of `list[Offer]` takes half a microsecond more, and there are many
        for number, pool in groups.pools_for(shape):
            group = self.groups[number]
            try:
                offer = group.cheapest[pool]
            except KeyError:
                offer = group.cheapest[pool] = groups.cheapest_pool(group, *pool)
            if offer is not None and offer[1] < least:
                least = offer[1]
                found.append(offer)
        return found

    def _find_places(self, shape: GangShape) -> tuple[Place, ...]:
        found = [place for admitted in shape.admitted for place in self._places_on(shape, admitted)]
        if len(found) <= 1:
            return tuple(found)
        cheapest: dict[tuple[tuple[int, ...], bool], Place] = {}
        for place in found:
            known = cheapest.get((place.kinds, place.is_consolidated))
            if known is None or place.cost < known.cost:
                cheapest[place.kinds, place.is_consolidated] = place
        return tuple(cheapest.values())

    def _places_on(self, shape: GangShape, admitted: AdmittedTypes) -> tuple[Place, ...]:
        numbers = self._groups.of_types(admitted)
        if len(numbers) != 1:
            return self._find_places_on(shape, admitted, [self.groups[number] for number in numbers])
        group = self.groups[numbers[0]]
        known = group.places.get(admitted)
        if known is None:
            known = group.places[admitted] = self._find_places_on(shape, admitted, [group])
        return known

    def _find_places_on(self, shape: GangShape, some: AdmittedTypes, groups: Iterable[_FreeGroup]) -> tuple[Place, ...]:
        usable = [
            (of_class, servers, members)
            for group in groups
            for servers, members in group.classes.items()
            if (of_class := some.usable(servers)) is not None
        ]
        return tuple(self._candidates(shape, usable)) if _suffice(usable, shape.workers) else ()

    def _candidates(self, shape: GangShape, usable: Sequence[_Alike]) -> Iterator[Place]:
        """Yields the cheapest server that holds the whole gang, else the fewest servers; then the cheapest GPUs
        anywhere, unless that is the same."""
        single = None
        some, servers, members = self._first(usable, [alike[0].alone for alike in usable])
        if some.alone[0] < inf:
            single = self._groups.place(shape, self._of_server(some, servers, _lowest(members)))
            if single is not None:
                yield single
        elif (fewest := self._groups.place(shape, self._largest_first(usable))) is not None:
            yield fewest
        (_, _, kind, free, _), *_ = self._first(usable, [alike[0].pools[0][0] for alike in usable])[0].pools
        if single is None or single.kinds != (kind,) or free < shape.workers:
            anywhere = self._groups.place(shape, self._cheapest_first(usable))
            if anywhere is not None:
                yield anywhere

    def _first(self, usable: Sequence[_Alike], order: Sequence[tuple[object, ...]]) -> _Alike:
        """Returns those for which `order` is lowest, of equal ones those with the first pool by number."""
        lowest = min(order)
        first = [alike for alike, own in zip(usable, order, strict=True) if own == lowest]
        if len(first) == 1:
            return first[0]
        return min(first, key=lambda alike: self._groups.layout.pools_of[_lowest(alike[2])][alike[0].pools[0][1]])

    def _of_server(self, some: Usable, servers: ServerClass, server: int) -> Iterator[_FreePool]:
        """Yields the pools of this server, the cheapest first."""
        of_server = self._groups.layout.pools_of[server]
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

    def _pools_by_number(self, pool: UsablePool, servers: ServerClass, members: int) -> Iterator[_FreePool]:
        _, position, kind, free, price = pool
        for server in _numbers(members):
            yield self._groups.layout.pools_of[server][position], server, servers, position, kind, free, price


_Alike = tuple[Usable, ServerClass, int]
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


def _one_by_one(some: Usable, servers: ServerClass, members: int) -> Iterator[tuple[int, Usable, ServerClass]]:
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


def _undominated_by_rank(shape: GangShape, places: Sequence[Place]) -> Iterator[Offer]:
    """Yields the same for a gang whose shape tells which of two places is faster."""
    ranks, types = shape.speed_ranks, len(shape.speed_ranks)
    offers: list[tuple[int, float, int, Place]] = []
    for place in places:
        kinds = place.kinds
        slowest = kinds[0] if len(kinds) == 1 else min(kinds, key=ranks.__getitem__)
        offers.append((-ranks[slowest], place.cost, slowest if place.is_consolidated else types + slowest, place))
    if len(offers) > 1:
        offers.sort(key=itemgetter(0, 1))
    least = inf
    for _, cost, number, place in offers:
        if cost < least:
            least = cost
            yield number, cost, place
