"""Where each job takes its turns (Gandiva_fair, slide 10): servers are fair among each other while their load, tickets
per GPU, is balanced; and a user's jobs lie on the types of GPU that the user holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.filling import Floats
from slurmsched.policies.gandiva_fair.market import Market
from slurmsched.policies.placing import Wish
from slurmsched.policies.pools import Ints

__all__ = ["Homes"]

_HORIZON: Final = 4.0
"""Rounds over which a shortfall is made good, and over which the servers' progress is compared."""

_NONE: Final = 1e-9


class Homes:
    """The load of every pool as jobs find a home. `owed` are GPU-seconds by user and type that fell short lately."""

    def __init__(
        self,
        arena: Arena,
        market: Market,
        owed: Mapping[str, Mapping[str, float]],
        settled: Sequence[Contender],
    ) -> None:
        self._arena, self._market, self._said = arena, market, arena.situation.tickets
        self._horizon = _HORIZON * arena.situation.period
        self._capacity = np.maximum(arena.capacity.gpus.astype(np.float64), 1e-9)
        self._short: dict[tuple[str, str], float] = {}
        for user, held in market.holdings.items():
            late = owed.get(user, {})
            for kind, gpus in held.items():
                self._short[user, kind] = gpus + late.get(kind, 0.0) / self._horizon
        self._of_type: dict[tuple[Wish, str], Ints] = {}
        self._free = {one.job.id for one, free in zip(arena.contenders, market.free, strict=True) if free}
        self._moved = 0
        self._least: dict[int, float] = {}
        for one in settled:
            self._least[one.home] = min(one.passed, self._least.get(one.home, one.passed))
        self._last = min(self._least.values(), default=0.0)
        for one in settled:
            self._forgive(one)
            self._hold(one, 1.0)
        narrow = [one for one in settled if one.narrow]
        homes = np.array([one.home for one in narrow], dtype=np.int64)
        tickets = np.array([one.tickets for one in narrow])
        self._tickets = np.bincount(homes, weights=tickets, minlength=len(arena.pools)).astype(np.float64)
        had = tickets * np.array([one.passed for one in narrow])
        self._service = np.bincount(homes, weights=had, minlength=len(arena.pools)).astype(np.float64)
        """Tickets times passes: what the jobs of a pool have had."""

    def enter(self, one: Contender, part: float | None = None) -> None:
        """A home for who has none: the type of which the user is shortest, and there the server with the least load.

        A newcomer starts `part` of a slice after the last of those there; None for a job that only lost its home. It is
        1 for a job that comes alone: who submits one short job after the other gets no more than who submits a long
        one. Those that come together spread over the slice, so that they do not all have their turns at once.
        """
        if one.narrow and one.home < 0:
            kinds = [kind for kind in self._market.types if len(self._pools(one.wish, kind))]
            kind = max(kinds, key=lambda kind: self._short.get((one.job.user, kind), 0.0))
            one.home = self._lightest(one, kind)
        if part is not None:
            one.passed = self._reached(one.home) + part * one.stride(one.slice(self._said))
        if one.narrow:
            self._count(one, 1.0)

    def _reached(self, pool: int) -> float:
        """Seconds of its tickets that every job had, of those that were in this pool before; else of all."""
        return self._least.get(pool, self._last)

    def _forgive(self, one: Contender) -> None:
        """What a job had only because nobody before it could use it is not held against it for ever: it is never more
        than two slices ahead of the last."""
        quantum = max(one.slice(self._said), self._arena.situation.period)
        one.passed = min(one.passed, self._reached(one.home) + 2 * one.stride(quantum))

    def balance(self, waiting: Sequence[Contender]) -> None:
        """Give a few waiting jobs another home: first on another type, then on another server of the type."""
        most = self._said.migrations
        if len(self._market.types) > 1:
            self._to_other_types(waiting, most)
        by_pool = defaultdict[int, list[Contender]](list)
        for one in sorted(waiting, key=lambda one: one.passed):
            by_pool[one.home].append(one)
        for kind in self._market.types:
            pools = np.array([pool for pool, own in enumerate(self._arena.pools.types) if own == kind], dtype=np.int64)
            while self._moved < most and len(pools) > 1 and self._level(pools, by_pool):
                self._moved += 1

    def _pools(self, wish: Wish, kind: str) -> Ints:
        key = (wish, kind)
        if key not in self._of_type:
            types, homes = self._arena.pools.types, self._arena.homes(wish)
            self._of_type[key] = homes[[types[int(pool)] == kind for pool in homes]] if len(homes) else homes
        return self._of_type[key]

    def _lightest(self, one: Contender, kind: str) -> int:
        pools = self._pools(one.wish, kind)
        load = (self._tickets[pools] + one.tickets) / self._capacity[pools]
        return int(pools[int(np.argmin(load))])

    def _count(self, one: Contender, sign: float) -> None:
        self._tickets[one.home] += sign * one.tickets
        self._service[one.home] += sign * one.tickets * one.passed
        self._hold(one, sign)

    def _hold(self, one: Contender, sign: float) -> None:
        """Count it on the type it is at home on, against what its user holds of that."""
        if one.narrow and one.job.id in self._free:
            key = (one.job.user, self._arena.pools.types[one.home])
            self._short[key] = self._short.get(key, 0.0) - sign * one.tickets

    def _move(self, one: Contender, pool: int) -> None:
        self._count(one, -1.0)
        one.home = pool
        self._count(one, 1.0)

    def _to_other_types(self, waiting: Sequence[Contender], most: int) -> None:
        own = defaultdict[tuple[str, str], list[Contender]](list)
        for one in sorted(waiting, key=lambda one: one.passed):
            if one.job.id in self._free:
                own[one.job.user, self._arena.pools.types[one.home]].append(one)
        users = {user for user, _ in own}
        while self._moved < most and users:
            gaps = [(self._gap(user, own), user) for user in sorted(users)]
            (gain, source, target), user = max(gaps, key=lambda gap: gap[0][0])
            mover = next((one for one in own[user, source] if self._fits(one, target, gain)), None)
            if mover is None:
                users.discard(user)
                continue
            own[user, source].remove(mover)
            self._move(mover, self._lightest(mover, target))
            self._moved += 1

    def _gap(self, user: str, own: Mapping[tuple[str, str], list[Contender]]) -> tuple[float, str, str]:
        """By how much the user has too much of one type and too little of another."""
        short = {kind: self._short.get((user, kind), 0.0) for kind in self._market.types}
        sources = [kind for kind in short if own.get((user, kind))]
        target = max(short, key=lambda kind: short[kind])
        source = min(sources, key=lambda kind: short[kind], default=target)
        return short[target] - short[source], source, target

    def _fits(self, one: Contender, kind: str, gap: float) -> bool:
        return gap > one.tickets and len(self._pools(one.wish, kind)) > 0

    def _level(self, pools: Ints, by_pool: Mapping[int, list[Contender]]) -> bool:
        """Move a waiting job from the server whose jobs will be furthest behind to the one furthest ahead, if that
        brings the two closer."""
        tickets, had = self._tickets[pools], self._service[pools]
        ahead = _ahead(tickets, had + self._horizon * self._capacity[pools])
        source, target = int(np.argmin(ahead)), int(np.argmax(ahead))
        gap = float(ahead[target] - ahead[source]) if source != target else 0.0
        if gap <= self._said.quantum:
            return False
        there = int(pools[target])
        for one in by_pool.get(int(pools[source]), []):
            if not self._arena.at_home(one.wish, there):
                continue
            moved = np.array([-one.tickets, one.tickets])
            both = np.array([source, target])
            served = had[both] + self._horizon * self._capacity[pools[both]] + moved * one.passed
            behind, before = _ahead(tickets[both] + moved, served).tolist()
            if abs(before - behind) < gap:
                by_pool[one.home].remove(one)
                self._move(one, there)
                by_pool[there].append(one)
                return True
        return False


def _ahead(tickets: Floats, served: Floats) -> Floats:
    """The mean pass that each server's jobs will have come to; one without jobs is ahead of all."""
    return np.where(tickets > _NONE, served / np.maximum(tickets, _NONE), np.inf)
