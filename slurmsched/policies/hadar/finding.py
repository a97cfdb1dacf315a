"""FIND_ALLOC (algorithm 2, lines 24 to 36): where a gang may lie, together or apart, and what each place costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds
from slurmsched.policies.hadar.servers import Floats, Ints, Mask, Servers
from slurmsched.policies.hadar.utilities import Utility

__all__ = ["Offer", "offers", "paying"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A place for a gang: the rate there in iterations per second, and the sum of the prices."""

    allocation: Allocation
    rate: float
    cost: float


def offers(speeds: Speeds, servers: Servers, free: Ints, price: Floats) -> tuple[Offer, ...]:
    """The places worth thinking about, the fastest first: none is both slower and no cheaper than another.

    Types are let in one after the other, from the fastest. For a given slowest type the cost alone decides: so the
    cheapest server that holds all of the gang, the fewest servers, and the cheapest GPUs wherever they are; of equally
    dear GPUs the slower, since the gang is no faster for the others.
    """
    found: list[Offer] = []
    if speeds.fewest > 1:
        free = np.minimum(free, -(-speeds.workers // speeds.fewest))
    idle = free > 0
    for allowed in _allowed(speeds):
        pools = np.flatnonzero(allowed[servers.type_of] & idle)
        if int(free[pools].sum()) >= speeds.workers:
            found += _places(speeds, servers, pools, free, price)
    found.sort(key=lambda offer: (-offer.rate, offer.cost))
    kept: list[Offer] = []
    for offer in found:
        if offer.rate > 0 and (not kept or offer.cost < kept[-1].cost):
            kept.append(offer)
    return tuple(kept)


def _allowed(speeds: Speeds) -> Iterator[Mask]:
    """Masks of types: one after the other let in beside the faster ones, or each by itself."""
    by_rate = sorted(
        (kind for kind, rate in enumerate(speeds.together) if rate > 0), key=lambda kind: -speeds.together[kind]
    )
    mask = np.zeros(len(speeds.together), dtype=np.bool_)
    for kind in by_rate:
        mask = mask.copy() if speeds.mixes else np.zeros_like(mask)
        mask[kind] = True
        yield mask


def paying(ask: Ask, among: tuple[Offer, ...], utility: Utility) -> list[tuple[float, Offer]]:
    """Each offer with its payoff, utility less price."""
    return [(utility(ask, ask.completion(offer.rate)) - offer.cost, offer) for offer in among]


def _places(speeds: Speeds, servers: Servers, pools: Ints, free: Ints, price: Floats) -> Iterator[Offer]:
    own = np.array(speeds.together)[servers.type_of[pools]]
    room = np.asarray(np.bincount(servers.server_of[pools], weights=free[pools]), dtype=np.float64)
    cheapest = pools[np.lexsort((-free[pools], own, price[pools]))]
    on = servers.server_of[cheapest]
    alone = _one_server(speeds.workers, on, free[cheapest], price[cheapest], room)
    if alone is not None:
        yield from _filled(speeds, servers, cheapest[on == alone], free, price)
    elif len(room) > 1:
        yield from _filled(speeds, servers, cheapest[np.lexsort((on, -room[on]))], free, price)
    yield from _filled(speeds, servers, cheapest, free, price)


def _one_server(wanted: int, on: Ints, free: Ints, price: Floats, room: Floats) -> int | None:
    """The cheapest server that holds the whole gang; of equal ones that with the least room, then the first in the
    order of the pools."""
    fitting = room[on] >= wanted
    if not fitting.any():
        return None
    grouped = np.flatnonzero(fitting)[np.argsort(on[fitting], kind="stable")]
    of, cumulated = on[grouped], np.cumsum(free[grouped])
    before = cumulated - free[grouped]
    taken = np.minimum(np.maximum(wanted - (before - before[np.searchsorted(of, of)]), 0), free[grouped])
    cost = np.bincount(of, weights=taken * price[grouped], minlength=len(room))
    best = np.lexsort((room[on[fitting]], cost[on[fitting]]))[0]
    return int(on[fitting][best])


def _filled(speeds: Speeds, servers: Servers, order: Ints, free: Ints, price: Floats) -> Iterator[Offer]:
    """The gang in the first of these pools, if it may lie on so many servers."""
    before = np.cumsum(free[order]) - free[order]
    taken = np.minimum(np.maximum(speeds.workers - before, 0), free[order])
    used = order[taken > 0]
    spread = len(set(servers.server_of[used].tolist()))
    if speeds.fewest <= spread <= (speeds.most or spread) and int(taken.sum()) == speeds.workers:
        rate = speeds.of(servers.type_of[used].tolist(), spread)
        yield Offer(servers.allocation(order, taken), rate, float(taken @ price[order]))
