"""Classes of servers that are alike, and shapes of gangs that are placed alike (for `places`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter

import numpy as np

from slurmsched.policies.hadar.problem import GangThroughput

PoolPrice = Callable[[int, int, int], float]
"""The price of a GPU in a pool of this type with so many GPUs in all, and so many of them free."""

Pool = tuple[int, int, int, float]
"""The type of a pool, its GPUs, those of them that are free, and the price of one."""


@dataclass(frozen=True, eq=False, slots=True)
class ServerClass:
    """Servers that are alike, by their pools. `classes` are all that are known: there is one object for each."""

    pools: tuple[Pool, ...]
    price: PoolPrice
    classes: dict[tuple[Pool, ...], ServerClass]
    of_kind: dict[int, tuple[float, int, int]] = field(init=False)
    """By type the price of a GPU, the free ones, and the position of the pool."""
    _taken: dict[tuple[int, int], ServerClass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_kind = {kind: (price, free, position) for position, (kind, _, free, price) in enumerate(self.pools)}
        object.__setattr__(self, "of_kind", by_kind)

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


UsablePool = tuple[_Key, int, int, int, float]
"""The key of a pool, its position on its server, its type, the GPUs that a gang can use, and their price."""


@dataclass(frozen=True, slots=True)
class Usable:
    """What a gang can use of a server of one class: the pools in the order of their keys, and the GPUs in all. `alone`
    has what the server alone costs the gang, infinite if it has too few GPUs, these, and the key of its first pool."""

    pools: tuple[UsablePool, ...]
    gpus: int
    alone: tuple[float, int, _Key]


class AdmittedTypes:
    """Some of the types that a gang can run on, and what it can use of servers of each class."""

    def __init__(self, shape: GangShape, kinds: Sequence[int]) -> None:
        self._shape, self.kinds = shape, frozenset(kinds)
        self._usable: dict[ServerClass, Usable | None] = {}

    def usable(self, servers: ServerClass) -> Usable | None:
        """Returns what the gang can use of such a server; None for nothing."""
        try:
            return self._usable[servers]
        except KeyError:
            known = self._usable[servers] = self._find_usable(servers)
            return known

    def _find_usable(self, servers: ServerClass) -> Usable | None:
        shape, pools = self._shape, list[UsablePool]()
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
        return Usable(tuple(pools), gpus, (cost if left <= 0 else inf, gpus, pools[0][0]))


class GangShape:
    """What the places of a gang depend on: its request, and by type how many types are slower, -1 where it cannot run.
    Gangs with different rates have it in common."""

    def __init__(self, gang: GangThroughput, speed_ranks: tuple[int, ...]) -> None:
        """`gang` is one of them."""
        self.workers, self.speed_ranks, self.min_servers = gang.workers, speed_ranks, gang.min_servers
        self.is_ranked = gang.max_servers == 1 or gang.spread == gang.consolidated
        """Whether these ranks alone tell which of two places is faster."""
        self.max_servers = inf if gang.max_servers is None else gang.max_servers
        by_rate = sorted(
            (kind for kind, rank in enumerate(speed_ranks) if rank >= 0), key=lambda kind: -speed_ranks[kind]
        )
        self.admitted = tuple(
            AdmittedTypes(self, by_rate[: at + 1] if gang.mixes_types else [kind]) for at, kind in enumerate(by_rate)
        )
        """The fastest one, two, ... types if the gang mixes types, else each type alone."""
        self.in_one_pool = (gang.min_servers, gang.max_servers, gang.mixes_types) == (1, 1, False) and len(
            {*speed_ranks}
        ) == len(speed_ranks)
        """Whether it is placed in a single pool, and no two types are equally fast."""
        self.kinds = tuple(by_rate)
        """The types that it can run on, the fastest first."""


class GangShapes:
    """The shapes of a round's gangs, one object for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], GangShape] = {}

    def of(self, throughput: GangThroughput) -> GangShape:
        return self.of_all([throughput])[0]

    def of_all(self, throughputs: Sequence[GangThroughput]) -> list[GangShape]:
        """Returns the shape of each."""
        found = list[GangShape]()
        for each, ranks in zip(throughputs, _speed_ranks([each.consolidated for each in throughputs]), strict=True):
            as_fast_apart = each.spread is each.consolidated or each.spread == each.consolidated
            shape = each.workers, ranks, each.min_servers, each.max_servers, each.mixes_types, as_fast_apart
            known = self._known.get(shape)
            if known is None:
                known = self._known[shape] = GangShape(each, ranks)
            found.append(known)
        return found


def _speed_ranks(rates: Sequence[tuple[float, ...]]) -> list[tuple[int, ...]]:
    """Returns for the rates of each gang how many different ones above 0 are lower, -1 for a rate of 0."""
    table = np.array(rates, dtype=np.float64).reshape(len(rates), len(rates[0]) if rates else 0)
    ranks = np.zeros(table.shape, dtype=np.int64)
    for kind, column in enumerate(table.T):
        is_first = (column > 0) & ~(table[:, :kind] == column[:, None]).any(axis=1)
        ranks += is_first[:, None] & (column[:, None] < table)
    return [*map(tuple, np.where(table > 0, ranks, -1).tolist())]
