"""How many of a job's steps each of its copies gets: in proportion to throughput (section V-B)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import floor

from slurmsched.policies.hadare.errors import TrackingError

__all__ = ["dispatched"]


def dispatched(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Whole steps for copies that do so many a second, all of the steps in sum, so that the last copy is through as
    soon as can be. Each copy's part is less than the number of copies away from the exact proportion.

    Few steps thus go to the fastest copies alone, and the others get none: the last round's rule. Raises TrackingError
    where there are steps and nobody to do them.
    """
    if steps < 0 or any(rate < 0 for rate in rates):
        raise TrackingError(f"cannot divide {steps} steps over rates {', '.join(f'{rate:g}' for rate in rates)}")
    whole = sum(rates)
    if steps and not whole > 0:
        raise TrackingError(f"{steps} steps are left and no copy of the job can run anywhere")
    portions = [floor(steps * (rate / whole)) if rate else 0 for rate in rates]
    while sum(portions) > steps:  # a rate so small beside the others that its part was rounded up
        portions[max(range(len(rates)), key=portions.__getitem__)] -= 1
    through = [((portions[at] + 1) / rate, at) for at, rate in enumerate(rates) if rate > 0]
    heapify(through)
    for _ in range(steps - sum(portions)):
        _, at = heappop(through)
        portions[at] += 1
        heappush(through, ((portions[at] + 1) / rates[at], at))
    return tuple(portions)
