"""From tickets to GPUs: what every job is entitled to, what every user holds of each type, and what they exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job
from slurmsched.policies.gandiva_fair.contenders import Arena
from slurmsched.policies.gandiva_fair.entitlement import entitled, mix
from slurmsched.policies.gandiva_fair.filling import Floats, filled
from slurmsched.policies.gandiva_fair.speedups import by_speed, listed_speedups, slowed_down, user_speedups
from slurmsched.policies.gandiva_fair.tickets import registry_of, tree
from slurmsched.policies.gandiva_fair.trading import Trade, Trader, trade

__all__ = ["Market", "hold"]

_ByUser = Mapping[str, Mapping[str, float]]
"""GPUs by user and type."""


@dataclass(frozen=True, slots=True)
class Market:
    """`tickets` are GPUs by job, in the order of the contenders; `holdings` GPUs by user and type.

    Of jobs that may run on every type: what is `confined` to some types is not traded.
    """

    types: tuple[str, ...]
    """All there are, the fastest first."""
    tickets: Floats
    free: Sequence[bool]
    """Whether each job may run on every type."""
    holdings: Mapping[str, Mapping[str, float]]
    confined: Mapping[str, Mapping[str, float]]
    """What is not traded, by user and type."""
    speedups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trades: tuple[Trade, ...] = ()
    suspects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Everybody:
    """Columns over the contenders, and the GPUs there are of each type. `free` as in the market."""

    jobs: Sequence[Job]
    caps: Floats
    allowed: Sequence[frozenset[str]]
    free: Sequence[bool]
    capacity: Mapping[str, float]

    @classmethod
    def of(cls, arena: Arena) -> _Everybody:
        capacity = arena.gpus_by_type()
        allowed = [arena.types_of(one) for one in arena.contenders]
        caps = [one.size if kinds else 0 for one, kinds in zip(arena.contenders, allowed, strict=True)]
        return cls(
            [one.job for one in arena.contenders],
            np.array(caps, dtype=np.float64),
            allowed,
            [kinds >= {kind for kind, gpus in capacity.items() if gpus} for kinds in allowed],
            capacity,
        )


def hold(arena: Arena, best: Mapping[str, float]) -> Market:
    """The market of one round. `best` are the highest rates measured so far, by `model type`."""
    situation, everybody = arena.situation, _Everybody.of(arena)
    types = by_speed(situation.knowledge, everybody.capacity)
    branch = tree(everybody.jobs, registry_of(situation.tickets, situation.snapshot.associations))
    tickets = entitled(branch, everybody.caps, everybody.allowed, everybody.capacity)
    traded = tuple(kind for kind in types if everybody.capacity[kind])
    market = Market(types, tickets, everybody.free, *_holdings(everybody, tickets, traded))
    if not traded:
        return market
    free = [job for job, anywhere in zip(everybody.jobs, everybody.free, strict=True) if anywhere]
    market = replace(market, speedups=user_speedups(free, situation.knowledge, traded, traded[-1]))
    if not situation.tickets.trading or len(traded) == 1:
        return market
    jobs = {job.id: job for job in everybody.jobs}
    suspects = slowed_down(best, situation.knowledge.measured, traded[-1], jobs)
    return _traded(replace(market, suspects=suspects), everybody, traded, situation.knowledge)


def _holdings(everybody: _Everybody, tickets: Floats, types: Sequence[str]) -> tuple[_ByUser, _ByUser]:
    """What users hold, and what of theirs is confined. All hold the same mix of what the confined leave: all of it, or
    the fastest where not all is needed."""
    whole, confined = defaultdict[str, float](float), defaultdict[str, dict[str, float]](dict)
    left, capacity = dict(everybody.capacity), everybody.capacity
    for job, share, anywhere, kinds in zip(
        everybody.jobs, tickets.tolist(), everybody.free, everybody.allowed, strict=True
    ):
        if anywhere:
            whole[job.user] += share
            continue
        there = sum(capacity[kind] for kind in kinds)
        for kind in kinds if there else ():
            part = share * capacity[kind] / there
            left[kind] -= part
            confined[job.user][kind] = confined[job.user].get(kind, 0.0) + part
    amount = sum(whole.values())
    made_of = mix(amount, left, types)
    holdings = {
        user: {kind: share * gpus / amount if amount else 0.0 for kind, gpus in made_of.items()}
        for user, share in whole.items()
    }
    return holdings, confined


def _traded(market: Market, everybody: _Everybody, types: Sequence[str], knowledge: Knowledge) -> Market:
    caps, own = everybody.caps, defaultdict[str, list[int]](list)
    for place, (job, anywhere) in enumerate(zip(everybody.jobs, market.free, strict=True)):
        if anywhere:
            own[job.user].append(place)
    traders = [
        Trader(user, held, market.speedups[user], room=float(caps[own[user]].sum()) - sum(held.values()))
        for user, held in market.holdings.items()
        if user in market.speedups and user not in market.suspects
    ]
    listed = listed_speedups(knowledge, types, types[-1])
    worth = {kind: everybody.capacity[kind] * listed.get(kind, 1.0) for kind in types[:-1]}
    after, trades = trade(traders, worth, listed)
    holdings, tickets = dict(market.holdings), market.tickets.copy()
    for trader in after if trades else ():
        holdings[trader.user] = trader.holdings
        places = own[trader.user]
        tickets[places] = filled(sum(trader.holdings.values()), np.ones(len(places)), caps[places])
    return replace(market, holdings=holdings, tickets=tickets, trades=trades)
