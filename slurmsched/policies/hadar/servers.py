"""The GPUs of one type on one server, h and r of the paper, as vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds

__all__ = ["Floats", "Ints", "Mask", "Servers"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Servers:
    """`capacity[p]` GPUs of type `type_of[p]`, by position in `types`, on the server `server_of[p]`."""

    types: tuple[str, ...]
    type_of: Ints
    server_of: Ints
    capacity: Ints
    by_type: Ints = field(init=False, repr=False)
    """GPUs of each type."""
    _best: dict[Speeds, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        counts = np.bincount(self.type_of, weights=self.capacity, minlength=len(self.types))
        object.__setattr__(self, "by_type", counts.astype(np.int64))

    @classmethod
    def alike(cls, servers: Iterable[tuple[str, int]]) -> Servers:
        """Servers of one type each, so many GPUs on each, in this order."""
        found = tuple(servers)
        types = tuple(dict.fromkeys(kind for kind, _ in found))
        return cls(
            types,
            np.array([types.index(kind) for kind, _ in found], dtype=np.int64),
            np.arange(len(found), dtype=np.int64),
            np.array([gpus for _, gpus in found], dtype=np.int64),
        )

    def without(self, allocations: Iterable[Allocation]) -> Ints:
        """What is free in each pool beside these."""
        free = self.capacity.copy()
        for allocation in allocations:
            for pool, gpus in allocation:
                free[pool] -= gpus
        return free

    def best(self, speeds: Speeds) -> float:
        """Iterations per second on the fastest types that have enough GPUs for the gang; 0.0 where it never fits."""
        if speeds not in self._best:
            room, reached = 0, 0.0
            for rate, gpus in sorted(zip(speeds.together, self.by_type.tolist(), strict=True), reverse=True):
                room = room + gpus if speeds.mixes else gpus
                if room >= speeds.workers:
                    reached = rate
                    break
            self._best[speeds] = reached
        return self._best[speeds]

    def rate(self, ask: Ask, allocation: Allocation) -> float:
        """Iterations per second there."""
        pools = [pool for pool, _ in allocation]
        return ask.speeds.of(self.type_of[pools].tolist(), len(set(self.server_of[pools].tolist())))

    def counts(self, allocation: Allocation) -> dict[int, int]:
        """GPUs by type."""
        found: dict[int, int] = {}
        for pool, gpus in allocation:
            kind = int(self.type_of[pool])
            found[kind] = found.get(kind, 0) + gpus
        return found

    def allocation(self, pools: Sequence[int] | Ints, gpus: Sequence[int] | Ints) -> Allocation:
        """Those with any GPU of them, pools ascending."""
        return tuple(sorted((int(pool), int(count)) for pool, count in zip(pools, gpus, strict=True) if count > 0))
