"""GPUs that nobody at home there can use go to whoever comes first and fits: no turn is needed for what is idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from slurmsched.model import JobId
from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.servers import Servers
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing import Level, Placement, Wish, place
from slurmsched.policies.pools import Ints

__all__ = ["fill_in"]


@dataclass(frozen=True, slots=True)
class _FastestFirst:
    """The fastest type there is room on (slide 11), then the server with the least free that is just enough."""

    speed_rank: Ints
    """By pool, 0 for the fastest type."""
    name: str = "fastest type with room"

    def choose(self, ledger: Ledger, fitting: Ints, count: int) -> Ints:
        return fitting[np.lexsort((ledger.gpus[fitting], self.speed_rank[fitting]))[:count]]


def fill_in(
    arena: Arena, waiting: Iterable[Contender], servers: Servers, fastest_first: tuple[str, ...]
) -> Mapping[JobId, Placement]:
    """Places for those of the waiting, in order, that fit into what is left."""
    ranks = {kind: rank for rank, kind in enumerate(fastest_first)}
    choosing = _FastestFirst(np.array([ranks[kind] for kind in arena.pools.types], dtype=np.int64))
    room, found, full = servers.ledger(arena.pools), dict[JobId, Placement](), set[Wish]()
    largest = int(room.gpus.max(initial=0))
    for one in waiting:
        if largest <= 0:
            break
        if one.wish in full or not one.wish.options or one.wish.gang.gpus > largest:
            continue
        placement = place(one.wish, Level.LEAST, room, choosing)
        if placement is None:
            full.add(one.wish)
            continue
        room.claim(placement.claim(arena.pools))
        found[one.job.id] = placement
        largest = int(room.gpus.max(initial=0))
    return found
