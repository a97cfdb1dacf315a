"""Which jobs get GPUs to themselves, and on which nodes (Tesserae, section 3.2, algorithm 1).

Both ways keep a gang consolidated: on one node where it fits into one, else on whole nodes and one rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurmsched.policies.pools import Ints

__all__ = ["Seat", "Seating", "in_order", "keeping_homes"]

Seat = tuple[int, int]
"""A node and how many of its GPUs."""


class Seating(Protocol):
    """Seats of the jobs that get GPUs, by job. `order` has the jobs, the first come first; `gpus` is by job, `sizes` by
    node; `homes` are the seats of the jobs that run."""

    def __call__(
        self, order: Sequence[int], gpus: Ints, sizes: Ints, homes: Mapping[int, Sequence[Seat]], /
    ) -> dict[int, list[Seat]]: ...


def in_order(
    order: Sequence[int], gpus: Ints, sizes: Ints, _homes: Mapping[int, Sequence[Seat]]
) -> dict[int, list[Seat]]:
    """As the paper has it: from nothing, each job in its turn on the fullest node that holds it; one that finds no
    consolidated place is pending, and those behind it are still tried."""
    return _offered(_Room(sizes), order, gpus)


def keeping_homes(
    order: Sequence[int], gpus: Ints, sizes: Ints, homes: Mapping[int, Sequence[Seat]]
) -> dict[int, list[Seat]]:
    """Ours: first who, then where. As many of the first jobs as there are GPUs for are chosen, and seated the widest
    first, so that narrow ones do not break up nodes. A job that runs keeps its nodes where they are free; another goes
    where the fewest of those still to be seated are at home. What is left is offered in order."""
    chosen = _first(order, gpus, int(sizes.sum()))
    room, found = _Room(sizes), dict[int, list[Seat]]()
    for job in chosen:
        room.expect(homes.get(job, ()), 1)
    by_width = sorted(chosen, key=lambda job: (-int(gpus[job]), job not in homes))
    for job in by_width:
        width, home = int(gpus[job]), homes.get(job, ())
        room.expect(home, -1)
        seats = list(home) if home and room.holds(home) else room.least_wanted(width)
        if seats:
            room.take(seats)
            found[job] = seats
    return found | _offered(room, [job for job in order if job not in found] if room.left else (), gpus)


def _offered(room: _Room, order: Sequence[int], gpus: Ints) -> dict[int, list[Seat]]:
    """Seats of what is free, for who comes first."""
    found, too_wide = dict[int, list[Seat]](), int(room.sizes.sum()) + 1
    for job in order:
        if not room.left:
            break
        width = int(gpus[job])
        if width >= too_wide:  # nothing is given back, so who is as wide as one that failed fails too
            continue
        seats = room.fullest(width)
        if seats:
            room.take(seats)
            found[job] = seats
        else:
            too_wide = width
    return found


def _first(order: Sequence[int], gpus: Ints, left: int) -> list[int]:
    """Those of the order that the GPUs suffice for, by number alone."""
    chosen = list[int]()
    for job in order:
        if not left:
            break
        if gpus[job] <= left:
            left -= int(gpus[job])
            chosen.append(job)
    return chosen


@dataclass(slots=True)
class _Room:
    """What is free on each node, and how many of its GPUs jobs that are still to be seated had before."""

    sizes: Ints
    free: Ints = field(init=False)
    wanted: Ints = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.sizes.copy()
        self.wanted = np.zeros_like(self.sizes)
        self.left = int(self.sizes.sum())

    def expect(self, seats: Sequence[Seat], times: int) -> None:
        for node, gpus in seats:
            self.wanted[node] += gpus * times

    def holds(self, seats: Sequence[Seat]) -> bool:
        return all(self.free[node] >= gpus for node, gpus in seats)

    def take(self, seats: Sequence[Seat]) -> None:
        for node, gpus in seats:
            self.free[node] -= gpus
            self.left -= gpus

    def fullest(self, width: int) -> list[Seat]:
        """Seats on the fullest nodes; none where it does not fit consolidated."""
        return self._seats(width, self.free)

    def least_wanted(self, width: int) -> list[Seat]:
        """Seats that displace the fewest; of those the fullest nodes."""
        displaced = np.maximum(self.wanted - self.free + min(width, int(self.sizes.max())), 0)
        return self._seats(width, displaced * (int(self.sizes.max()) + 1) + self.free)

    def _seats(self, width: int, cost: Ints) -> list[Seat]:
        whole = int(self.sizes.max(initial=1))
        full, rest = divmod(width, whole)
        chosen = list[int]()
        if full:
            empty = np.flatnonzero((self.free == whole) & (self.sizes == whole))
            if len(empty) < full:
                return []
            chosen = empty[np.argsort(cost[empty], kind="stable")[:full]].tolist()
        seats = [(node, whole) for node in chosen]
        if rest:
            fits = self.free >= rest
            fits[chosen] = False
            if not fits.any():
                return []
            seats.append((int(np.argmin(np.where(fits, cost, np.iinfo(np.int64).max))), rest))
        return seats
