"""Whose turn it is: the central stride for gangs wider than a server, then one on every server (slides 9 and 10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.model import JobId
from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.servers import Servers
from slurmsched.policies.placing import CONSOLIDATED, Level, Placement, Wish, place
from slurmsched.policies.pools import Claim, Ints

__all__ = ["Turns", "take_turns"]


@dataclass(slots=True)
class Turns:
    """Who has a place. `kept` run on, `started` are given one, `left` must leave, each with the contender it is for.

    `blocked` would have had its turn, had more jobs been allowed to be moved.
    """

    kept: dict[JobId, Contender] = field(default_factory=dict)
    started: dict[JobId, tuple[Contender, Placement]] = field(default_factory=dict)
    left: dict[JobId, tuple[Contender, Contender]] = field(default_factory=dict)
    blocked: set[JobId] = field(default_factory=set)


def take_turns(arena: Arena, queue: Sequence[Contender], moves: int) -> tuple[Turns, Servers]:
    """One round over the queue, which is in order of pass; no more than `moves` running jobs leave.

    Where more would have to, the servers on which the difference is greatest come first.
    """
    turns, servers = _round(arena, queue, frozenset(one.job.id for one in queue if one.lease and not one.stays))
    if len(turns.left) <= moves:
        return turns, servers
    wanted = turns.started.keys()
    turns, servers = _round(arena, queue, _most_urgent(arena, turns, moves))
    turns.blocked |= wanted - turns.started.keys()
    return turns, servers


def _round(arena: Arena, queue: Sequence[Contender], may_leave: Collection[JobId]) -> tuple[Turns, Servers]:
    turns, servers = Turns(), Servers.of(arena.capacity)
    for one in queue:
        if one.lease is not None and one.job.id not in may_leave:
            servers.take(one.lease)
            turns.kept[one.job.id] = one
    open_ones = [one for one in queue if one.job.id not in turns.kept]
    local = [one for one in open_ones if one.narrow]
    _central(arena, [one for one in open_ones if not one.narrow], local, servers, turns)
    by_pool = defaultdict[int, list[Contender]](list)
    for one in local:
        by_pool[one.home].append(one)
    for pool, own in by_pool.items():
        _local(arena, pool, own, servers, turns)
    _spare(arena, queue, servers, turns)
    return turns, servers


def _local(arena: Arena, pool: int, queue: Iterable[Contender], servers: Servers, turns: Turns) -> None:
    """Gang-aware stride on one server: in order of pass, whoever still fits."""
    for one in queue:
        if servers.gpus[pool] <= 0:
            return
        claim = arena.claim(one)
        if servers.holds(claim):
            servers.take(claim)
            if one.lease is not None:
                turns.kept[one.job.id] = one
            else:
                turns.started[one.job.id] = (one, arena.placement(one.wish, pool))


def _central(
    arena: Arena, wide: Sequence[Contender], local: Sequence[Contender], servers: Servers, turns: Turns
) -> None:
    """Gang-aware stride for the wide: a gang has its turn on GPUs that no server gives to jobs of lesser pass."""
    if not wide:
        return
    passed = np.array([one.passed for one in local])
    homes = np.array([one.home for one in local], dtype=np.int64)
    sizes = np.array([one.size for one in local], dtype=np.float64)
    full: set[Wish] = set()
    for one in wide:
        if one.lease is None and (one.wish in full or not one.wish.options):
            continue
        first = int(np.searchsorted(passed, one.passed))
        ahead = np.bincount(homes[:first], weights=sizes[:first], minlength=len(arena.pools)).astype(np.int64)
        if one.lease is not None:
            if servers.holds(_beside(one.lease, ahead)):
                servers.take(one.lease)
                turns.kept[one.job.id] = one
            continue
        room = servers.ledger(arena.pools)
        room.gpus -= ahead
        if one.job.request.exclusive:
            room.gpus[ahead > 0] = 0
        found = place(one.wish, Level.LEAST, room, CONSOLIDATED)
        if found is None:
            full.add(one.wish)
        else:
            servers.take(found.claim(arena.pools))
            turns.started[one.job.id] = (one, found)


def _beside(lease: Claim, ahead: Ints) -> Claim:
    """The lease, and what goes before it on the same GPUs."""
    return replace(
        lease, gpus=tuple(gpus + int(ahead[pool]) for pool, gpus in zip(lease.pools, lease.gpus, strict=True))
    )


def _spare(arena: Arena, queue: Sequence[Contender], servers: Servers, turns: Turns) -> None:
    """Of those that have no turn: whoever makes room for nobody stays, the others leave for the first who came."""
    newcomer: dict[int, Contender] = {}
    for one in queue:
        if one.job.id in turns.started:
            for pool in turns.started[one.job.id][1].pools:
                newcomer.setdefault(int(arena.pools.node_of[pool]), one)
    for one in queue:
        if one.lease is None or one.job.id in turns.kept:
            continue
        nodes = (int(arena.pools.node_of[pool]) for pool in one.lease.pools)
        first = next((newcomer[node] for node in nodes if node in newcomer), None)
        if first is None or servers.holds(one.lease):
            servers.take(one.lease)
            turns.kept[one.job.id] = one
        else:
            turns.left[one.job.id] = (one, first)


def _most_urgent(arena: Arena, turns: Turns, moves: int) -> frozenset[JobId]:
    """Of those that should leave, as many as may: all of a group of servers or none, the most overdue group first.

    Servers are in one group where a gang that starts lies on them together, or a job that leaves did.
    """
    node_of, group = arena.pools.node_of, dict[int, int]()

    def of(node: int) -> int:
        while group.setdefault(node, node) != node:
            node = group[node]
        return node

    def join(pools: Iterable[int]) -> int:
        first, *others = [of(int(node_of[pool])) for pool in pools]
        for other in others:
            group[of(other)] = of(first)
        return of(first)

    for _, placement in turns.started.values():
        join(placement.pools)
    for one, _ in turns.left.values():
        join(one.lease.pools if one.lease else ())
    groups = defaultdict[int, list[JobId]](list)
    urgency = defaultdict[int, float](float)
    for job, (one, newcomer) in turns.left.items():
        there = join(one.lease.pools if one.lease else ())
        groups[there].append(job)
        urgency[there] = max(urgency[there], one.passed - newcomer.passed)
    chosen: list[JobId] = []
    for there in sorted(groups, key=lambda there: (-urgency[there], there)):
        if len(chosen) + len(groups[there]) <= moves:
            chosen += groups[there]
    return frozenset(chosen)
