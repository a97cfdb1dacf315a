"""What the tickets stand for where there are several types of GPU, before any trade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Final

import numpy as np

from slurmsched.policies.gandiva_fair.filling import Floats
from slurmsched.policies.gandiva_fair.tickets import Branch, share_out

__all__ = ["entitled", "mix"]

_DUST: Final = 1e-9
_FEW: Final = 6


def entitled(branch: Branch, caps: Floats, allowed: Sequence[frozenset[str]], capacity: Mapping[str, float]) -> Floats:
    """GPUs that each job's tickets stand for, of all types together.

    `caps` are the GPUs each job can use, `allowed` the types it can run on. Jobs that are confined to some types share
    out those alone where they are the bottleneck; what they get there counts as part of their users' share.
    """
    caps, whole = np.asarray(caps, dtype=np.float64).copy(), sum(capacity.values())
    confined = {kinds: np.array([own <= kinds for own in allowed], dtype=np.bool_) for kinds in _unions(allowed)}
    room = {kinds: sum(capacity.get(kind, 0.0) for kind in kinds) for kinds in confined}
    while True:
        shares = share_out(branch, whole, caps)
        over = {kinds: float(shares[inside].sum()) - room[kinds] for kinds, inside in confined.items()}
        worst = max(over, key=lambda kinds: over[kinds] / max(room[kinds], 1.0), default=None)
        if worst is None or over[worst] <= _DUST * max(whole, 1.0):
            return shares
        inside = confined.pop(worst)
        caps[inside] = share_out(branch, room[worst], np.where(inside, caps, 0.0))[inside]


def _unions(allowed: Sequence[frozenset[str]]) -> set[frozenset[str]]:
    """Every set of types that some jobs are confined to. Sites have few types; of many only the sets as they are."""
    kinds = set(allowed)
    if len(kinds) > _FEW:
        return kinds
    some = chain.from_iterable(combinations(kinds, count) for count in range(1, len(kinds) + 1))
    return {frozenset().union(*chosen) for chosen in some}


def mix(amount: float, left: Mapping[str, float], fastest_first: Sequence[str]) -> Mapping[str, float]:
    """How `amount` GPUs are made up of the types that are left: everything where all is needed, else the fastest."""
    found: dict[str, float] = {}
    for kind in fastest_first:
        found[kind] = min(amount, max(0.0, left.get(kind, 0.0)))
        amount -= found[kind]
    return found
