"""FIND_ALLOC (algorithm 2, lines 24 to 36): where a gang may lie, together or apart, and what each place costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds
from slurmsched.policies.hadar.servers import Floats, Ints, Servers
from slurmsched.policies.hadar.utilities import Utility

__all__ = ["Offer", "best_offer", "offers"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A place for a gang: the rate there in iterations per second, and the sum of the prices."""

    allocation: Allocation
    rate: float
    cost: float


def offers(speeds: Speeds, servers: Servers, free: Ints, price: Floats) -> tuple[Offer, ...]:
    """The places worth thinking about, the fastest first: none is both slower and dearer than another.

    Types are let in one after the other, from the fastest. For a given slowest type the cost alone decides: so the
    cheapest server that holds all of the gang, the fewest servers, and the cheapest GPUs wherever they are.
    """
    found: list[Offer] = []
    rates = np.array(speeds.together)
    for slowest in sorted({rate for rate in speeds.together if rate > 0}, reverse=True):
        pools = np.flatnonzero((rates[servers.type_of] >= slowest) & (free > 0))
        if int(free[pools].sum()) >= speeds.workers:
            found += _places(speeds, servers, pools, free[pools], price[pools])
    found.sort(key=lambda offer: (-offer.rate, offer.cost, len(offer.allocation)))
    kept: list[Offer] = []
    for offer in found:
        if offer.rate > 0 and (not kept or offer.cost < kept[-1].cost):
            kept.append(offer)
    return tuple(kept)


def best_offer(ask: Ask, among: tuple[Offer, ...], utility: Utility) -> tuple[float, Offer] | None:
    """The offer with the largest payoff, utility less price, and that payoff; None where there is no offer."""
    paying = ((utility(ask, ask.completion(offer.rate)) - offer.cost, offer) for offer in among)
    return max(paying, key=lambda pair: pair[0], default=None)


def _places(speeds: Speeds, servers: Servers, pools: Ints, free: Ints, price: Floats) -> Iterator[Offer]:
    wanted, on = speeds.workers, servers.server_of[pools]
    cheapest = np.lexsort((-free, price))
    orders: list[Ints] = []
    room = np.asarray(np.bincount(on, weights=free), dtype=np.float64)
    if (alone := _one_server(wanted, on, free, price, room)) is not None:
        orders.append(alone)
    elif len(room) > 1:
        orders.append(np.lexsort((price, on, -room[on])))
    for order in (*orders, cheapest):
        before = np.cumsum(free[order]) - free[order]
        taken = np.clip(wanted - before, 0, free[order])
        allocation = servers.allocation(pools[order], taken)
        kinds = servers.type_of[[pool for pool, _ in allocation]].tolist()
        spread = len({int(servers.server_of[pool]) for pool, _ in allocation})
        yield Offer(allocation, speeds.of(kinds, spread), float(taken @ price[order]))


def _one_server(wanted: int, on: Ints, free: Ints, price: Floats, room: Floats) -> Ints | None:
    """The pools of the cheapest server that holds the whole gang; of equal ones that with the least room."""
    order = np.lexsort((price, on))
    first = np.searchsorted(on[order], on[order])
    filled = np.cumsum(free[order]) - free[order]
    taken = np.clip(wanted - (filled - filled[first]), 0, free[order])
    cost = np.bincount(on[order], weights=taken * price[order], minlength=len(room))
    fitting = np.flatnonzero(room >= wanted)
    if not len(fitting):
        return None
    best = fitting[np.lexsort((room[fitting], cost[fitting]))[0]]
    return np.asarray(order[on[order] == best], dtype=np.int64)
