"""The dual subroutine (algorithm 2): which jobs to admit and where, for the largest sum of payoffs.

A state is what is free in each pool after some of the jobs were gone through; two ways to the same state are one, of
which the better counts, and what FIND_ALLOC offers there is worked out once for all jobs that are alike. The states
of so many servers are more than can be looked at, so only the best of them are followed from job to job: the work is
jobs x states x FIND_ALLOC, and not exponential. With as many states as there are it is the paper's recursion.

The paper compares the costs of the two branches alone (lines 18 to 23). Admitting nobody costs least; it is the payoff,
equation 8, that is compared here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds
from slurmsched.policies.hadar.finding import Offer, offers, paying
from slurmsched.policies.hadar.prices import Prices
from slurmsched.policies.hadar.servers import Ints, Servers
from slurmsched.policies.hadar.utilities import Utility

__all__ = ["STATES", "admit", "fill", "in_order"]

STATES = 4
"""States that are followed."""


@dataclass(frozen=True, eq=False, slots=True)
class _State:
    """What is free, what has been paid off so far, and the last job that was admitted on the way here."""

    key: bytes
    free: Ints
    idle: int
    payoff: float
    job: str = ""
    place: Allocation = ()
    before: _State | None = None


class _Market:
    """What FIND_ALLOC has offered: the same to all jobs that are alike, as long as nothing is taken."""

    def __init__(self, servers: Servers, prices: Prices) -> None:
        self._servers, self._prices = servers, prices
        self._offers: dict[tuple[bytes, Speeds], tuple[Offer, ...]] = {}

    def offers(self, speeds: Speeds, state: _State) -> tuple[Offer, ...]:
        if state.idle < speeds.workers:
            return ()
        key = state.key, speeds
        if key not in self._offers:
            price = self._prices.at(self._servers, state.free)
            self._offers[key] = offers(speeds, self._servers, state.free, price)
        return self._offers[key]


def admit(
    queue: Sequence[Ask], servers: Servers, free: Ints, prices: Prices, utility: Utility, *, states: int = STATES
) -> Mapping[str, Allocation]:
    """The jobs to admit and their places. Only a job whose payoff is positive is admitted (the payoff test)."""
    market, smallest = _Market(servers, prices), min((ask.workers for ask in queue), default=0)
    beam = [_State(free.tobytes(), free, int(free.sum()), 0.0)]
    for ask in in_order(queue, servers, utility):
        reached: dict[bytes, _State] = {state.key: state for state in beam}
        for state in beam:
            for payoff, offer in paying(ask, market.offers(ask.speeds, state), utility):
                if payoff > 0:
                    later = _after(state, ask, offer.allocation, payoff)
                    known = reached.get(later.key)
                    if known is None or known.payoff < later.payoff:
                        reached[later.key] = later
        beam = sorted(reached.values(), key=lambda state: -state.payoff)[:states]
        if all(state.idle < smallest for state in beam):
            break
    return _way_to(beam[0])


def fill(queue: Sequence[Ask], servers: Servers, free: Ints, prices: Prices, utility: Utility) -> dict[str, Allocation]:
    """Places for jobs in what is free, whatever it costs: GPUs that nobody wants at their price are idle otherwise."""
    market, state = _Market(servers, prices), _State(free.tobytes(), free, int(free.sum()), 0.0)
    given: dict[str, Allocation] = {}
    for ask in in_order(queue, servers, utility):
        chosen = paying(ask, market.offers(ask.speeds, state), utility)
        if chosen:
            _, offer = max(chosen, key=lambda pair: pair[0])
            given[ask.job] = offer.allocation
            state = _after(state, ask, offer.allocation, 0.0)
    return given


def in_order(queue: Sequence[Ask], servers: Servers, utility: Utility) -> list[Ask]:
    """Who gains most from a GPU comes first; of equals the widest, then who ends first."""

    def place(ask: Ask) -> tuple[float, int, float]:
        best = ask.completion(servers.best(ask.speeds))
        return -utility(ask, best) / ask.workers, -ask.workers, best

    return sorted(queue, key=place)


def _after(state: _State, ask: Ask, place: Allocation, payoff: float) -> _State:
    free = state.free.copy()
    free[[pool for pool, _ in place]] -= np.array([gpus for _, gpus in place])
    return _State(free.tobytes(), free, state.idle - ask.workers, state.payoff + payoff, ask.job, place, state)


def _way_to(state: _State) -> dict[str, Allocation]:
    found: dict[str, Allocation] = {}
    at: _State | None = state
    while at is not None and at.before is not None:
        found[at.job] = at.place
        at = at.before
    return dict(reversed(found.items()))
