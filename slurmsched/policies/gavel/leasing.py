"""Which workers those that run have: their own again where they can (Gavel, section 5: lease extension)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

__all__ = ["seated"]

E = TypeVar("E", bound=Hashable)


def seated(
    widths: Mapping[E, int], workers: Sequence[int], before: Mapping[E, Sequence[int]]
) -> dict[E, tuple[int, ...]]:
    """Workers of one type, ascending, for each entry: the widest first, so that gangs lie on few servers.

    `widths` in the order of picking; `before`: who had which workers. Of equal width, those that can keep theirs come
    first; the others fill server after server.
    """
    free, here = dict.fromkeys(workers), set(workers)
    places: dict[E, tuple[int, ...]] = {}
    for width in sorted({*widths.values()}, reverse=True):
        alike = [entry for entry in widths if widths[entry] == width]
        for entry in alike:
            had = before.get(entry, ())
            if had and here.issuperset(had) and all(worker in free for worker in had):
                places[entry] = _taken(free, had)
        for entry in alike:
            if entry not in places:
                places[entry] = _taken(free, list(free)[:width])
    return places


def _taken(free: dict[int, None], workers: Sequence[int]) -> tuple[int, ...]:
    for worker in workers:
        del free[worker]
    return tuple(sorted(workers))
