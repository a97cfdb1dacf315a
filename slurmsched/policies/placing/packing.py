"""A place for a gang: on the fewest nodes, as evenly as can be (Synergy, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing.choosing import Choosing
from slurmsched.policies.placing.placement import Placement
from slurmsched.policies.placing.wishes import Level, Option, Wish
from slurmsched.policies.pools import Ints

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
        self.musts = [node_of == pinned for pinned in wish.pinned]
        self.musts += [option.slowest] if option.slowest is not None else []

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
        """So many of the fitting pools, those that must be among them first."""
        if len(fitting) < count:
            return None
        taken = self._musts(fitting, lambda there: int(choosing.choose(self.ledger, there, 1)[0]))
        if taken is None or len(taken) > count:
            return None
        if len(taken) == count:
            return tuple(taken)
        others = fitting[~np.isin(fitting, taken)] if taken else fitting
        return (*taken, *(int(pool) for pool in choosing.choose(self.ledger, others, count - len(taken))))

    def _uneven(self, capacity: Ints, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The pools with most room, those that must be among them first, each with at least one part."""
        roomiest = np.lexsort((self.ledger.gpus, -capacity))
        roomiest = roomiest[capacity[roomiest] > 0]
        taken = self._musts(roomiest, lambda there: int(there[0]))
        if taken is None or not len(taken) <= count <= len(roomiest):
            return None
        taken += [int(pool) for pool in roomiest[~np.isin(roomiest, taken)][: count - len(taken)]]
        left, parts = self.wish.gang.parts, list[int]()
        for later, pool in zip(range(count - 1, -1, -1), taken, strict=True):
            parts.append(min(int(capacity[pool]), left - later))
            left -= parts[-1]
        return (tuple(taken), tuple(parts)) if left == 0 else None

    def _musts(self, fitting: Ints, pick: Callable[[Ints], int]) -> list[int] | None:
        """One of the fitting pools for everything that must be among them, None where one is missing."""
        taken = list[int]()
        for must in self.musts:
            there = fitting[must[fitting]]
            if not len(there):
                return None
            if not must[taken].any():
                taken.append(pick(there))
        return taken
