"""Whose demand is cut so that another job fits (section 4.2, step 2a)."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.policies.synergy.asking import Grant, PerGpu
from slurmsched.policies.synergy.reading import Reading

__all__ = ["victims"]

_Excess = tuple[float, float]
"""CPUs and memory on one server above the proportional share."""


def victims(server: int, missing: PerGpu, residents: list[Grant], reading: Reading) -> list[Grant]:
    """The jobs on the server to cut; none where nothing is missing. Not enough, where there is not enough.

    `residents` is sorted: jobs on fewer servers first, then those with most CPUs, then most memory per GPU.
    """
    if missing == (0.0, 0.0):
        return []
    residents.sort(key=lambda grant: (len(grant.seats), -grant.each[0], -grant.each[1]))
    if reading.spares_the_useless:
        return _just_enough(server, missing, residents)
    chosen: list[Grant] = []
    for grant in residents:
        chosen.append(grant)
        cpus, memory = _excess(server, grant)
        missing = max(0.0, missing[0] - cpus), max(0.0, missing[1] - memory)
        if missing == (0.0, 0.0):
            break
    return chosen


def _just_enough(server: int, missing: PerGpu, residents: Sequence[Grant]) -> list[Grant]:
    """The one job whose excess covers it with the least to spare; else the hungriest until it is covered, less those
    that turn out not to be needed."""
    excess = [(_excess(server, grant), grant) for grant in residents]
    alone = [(spare[0], spare[1], place) for place, (spare, _) in enumerate(excess) if _covers(spare, missing)]
    if alone:
        return [excess[min(alone)[2]][1]]
    chosen: list[tuple[_Excess, Grant]] = []
    for spare, grant in excess:
        if (spare[0] and missing[0]) or (spare[1] and missing[1]):
            chosen.append((spare, grant))
            if _covers(_sum(chosen), missing):
                break
    for entry in tuple(chosen):
        others = [other for other in chosen if other is not entry]
        if _covers(_sum(others), missing):
            chosen = others
    return [grant for _, grant in chosen]


def _excess(server: int, grant: Grant) -> _Excess:
    gpus = next(gpus for place, gpus in grant.seats if place == server)
    fair = grant.ask.fair
    return max(0.0, gpus * (grant.each[0] - fair[0])), max(0.0, gpus * (grant.each[1] - fair[1]))


def _covers(excess: _Excess, missing: PerGpu) -> bool:
    return excess[0] >= missing[0] and excess[1] >= missing[1]


def _sum(chosen: Sequence[tuple[_Excess, Grant]]) -> _Excess:
    return sum(spare[0] for spare, _ in chosen), sum(spare[1] for spare, _ in chosen)
