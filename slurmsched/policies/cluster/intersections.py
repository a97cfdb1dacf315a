"""What is free in two at once, such as now and beside a promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from slurmsched.policies.cluster.resources import FreeResources


@dataclass(slots=True)
class Intersections:
    """What is free in two at once, kept from call to call: only nodes that changed in one of them are computed anew,
    and so are scores by node. Nobody changes what it returns."""

    _known: WeakKeyDictionary[FreeResources, _Intersection] = field(default_factory=WeakKeyDictionary)

    def of(self, free: FreeResources, other: FreeResources) -> FreeResources:
        """Return `free.intersection(other)`, the same object for the same two. Of devices whose use is uncertain in
        both it may take others to be idle, but as many."""
        known = self._known.get(free)
        if known is None or known.other is not other:
            both, seen = free.intersection(other), (len(free.changed_nodes), len(other.changed_nodes))
            self._known[free] = _Intersection(other, both, seen)
            return both
        nodes = {*free.changed_nodes[known.seen[0] :], *other.changed_nodes[known.seen[1] :]}
        known.seen = len(free.changed_nodes), len(other.changed_nodes)
        if nodes:
            known.both.intersect_on(np.array(sorted(nodes), dtype=np.int64), free, other)
        return known.both


@dataclass(slots=True)
class _Intersection:
    """What is free in both, as it was after so many changes of each."""

    other: FreeResources
    both: FreeResources
    seen: tuple[int, int]
