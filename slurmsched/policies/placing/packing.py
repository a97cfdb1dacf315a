"""A place for a gang: on the fewest nodes, as evenly as can be (Synergy, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from slurmsched.policies.ledger import Ints, Ledger
from slurmsched.policies.placing.choosing import Choosing
from slurmsched.policies.placing.placement import Placement
from slurmsched.policies.placing.wishes import Level, Option, Wish

__all__ = ["place"]


def place(wish: Wish, level: Level, ledger: Ledger, choosing: Choosing) -> Placement | None:
    """Where the gang fits as a whole with so much for each part, None where it does not."""
    rooms: list[_Room] = []
    for count in range(max(wish.gang.fewest, len(wish.pinned)), wish.gang.most + 1):
        if count == 1:
            found = _first_place([_Room(wish, option, level, ledger) for option in wish.options], choosing, count)
        else:
            rooms = rooms or [_Room(wish, option, level, ledger) for option in wish.together]
            found = _first_place(rooms, choosing, count)
        if found is not None:
            return found
    return None


def _first_place(rooms: Iterable[_Room], choosing: Choosing, count: int) -> Placement | None:
    for room in rooms:
        option = room.option
        for pools, parts in room.places(choosing, count):
            if option.slowest is None or option.slowest[list(pools)].any():
                portion = option.portion(room.level, pools[0])
                return Placement(room.wish.gang, pools, parts, portion, option.kind(pools[0]))
    return None


class _Room:
    """What is free in the pools of one option, pool by pool, against what the gang's parts take."""

    def __init__(self, wish: Wish, option: Option, level: Level, ledger: Ledger) -> None:
        node_of = ledger.pools.node_of
        self.wish, self.option, self.level, self.ledger = wish, option, level, ledger
        self.part_cpus, self.part_memory = option.cpus[level], option.memory[level]
        self.cpus, self.memory = ledger.cpus[node_of], ledger.memory[node_of]
        self.open = option.mask & (ledger.closed[node_of] == 0)
        if wish.gang.request.exclusive:
            self.open &= (self.cpus >= ledger.pools.cpus[node_of]) & (self.memory >= ledger.pools.memory[node_of])

    def places(self, choosing: Choosing, count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Pools and the parts in each, the most even split first."""
        gang = self.wish.gang
        even = -(-gang.parts // count)
        if gang.parts == even * count:
            pools = self._chosen(choosing, self._fitting(even, even), count)
            if pools is not None:
                yield pools, (even,) * count
        if gang.each or count == 1:
            return
        widest = self._capacity(1, gang.parts)
        if int(np.sort(widest)[::-1][:count].sum()) < gang.parts:
            return
        for most in range(even, gang.parts - count + 2):
            uneven = self._uneven(self._capacity(most, most), count)
            if uneven is not None:
                yield uneven

    def _fitting(self, parts: int, most: int) -> Ints:
        """Pools that take so many parts, and memory for `most`, which every node of the job gets alike."""
        gang = self.wish.gang
        memory = np.maximum(self.part_memory * most, gang.memory)
        fits = self.open & (self.ledger.gpus >= parts * gang.gpus)
        return np.flatnonzero(fits & (self.cpus >= self.part_cpus * parts) & (self.memory >= memory))

    def _capacity(self, memory_parts: int, most: int) -> Ints:
        """Parts that each pool takes, at most so many; those that take none count 0."""
        capacity = np.zeros_like(self.ledger.gpus)
        pools = self._fitting(1, memory_parts)
        by_gpus = self.ledger.gpus[pools] // self.wish.gang.gpus
        by_cpus = self.cpus[pools] // np.maximum(self.part_cpus[pools], 1)
        capacity[pools] = np.minimum(np.minimum(by_gpus, by_cpus), most)
        return capacity

    def _chosen(self, choosing: Choosing, fitting: Ints, count: int) -> tuple[int, ...] | None:
        """So many of the fitting pools, one on every pinned node among them."""
        if len(fitting) < count:
            return None
        nodes, taken = self.ledger.pools.node_of[fitting], list[int]()
        for pinned in self.wish.pinned:
            there = fitting[nodes == pinned]
            if not len(there):
                return None
            taken.append(int(choosing.choose(self.ledger, there, 1)[0]))
        others = fitting[~np.isin(nodes, self.wish.pinned)] if taken else fitting
        if len(others) < count - len(taken):
            return None
        if count > len(taken):
            taken += [int(pool) for pool in choosing.choose(self.ledger, others, count - len(taken))]
        return tuple(taken)

    def _uneven(self, capacity: Ints, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The pools with most room, pinned ones before them, each with at least one part."""
        pinned = np.isin(self.ledger.pools.node_of, self.wish.pinned)
        order = np.lexsort((self.ledger.gpus, -capacity, ~pinned))[:count]
        if not capacity[order].all() or pinned[order].sum() < len(self.wish.pinned):
            return None
        left, parts = self.wish.gang.parts, list[int]()
        for later, pool in zip(range(len(order) - 1, -1, -1), order, strict=True):
            parts.append(min(int(capacity[pool]), left - later))
            left -= parts[-1]
        return (tuple(int(pool) for pool in order), tuple(parts)) if left == 0 else None
