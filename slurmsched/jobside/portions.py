"""Steps divided among copies by their speed, to the last one (HadarE, section V-B)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

from slurmsched.jobside.errors import TrackerError

__all__ = ["portions"]


def portions(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers that sum to `steps`, in proportion to the rates: what rounding leaves goes to those it took most
    from, the faster one first. Raises TrackerError where no rate is above zero."""
    if not all(isfinite(rate) and rate >= 0 for rate in rates) or not any(rates):
        raise TrackerError("steps are divided by speed: one of the copies has to have some")
    speeds = [Fraction(rate) for rate in rates]
    exact = [steps * speed / sum(speeds) for speed in speeds]
    given = [int(part) for part in exact]
    order = sorted(range(len(rates)), key=lambda copy: (given[copy] - exact[copy], -rates[copy], copy))
    for copy in order[: steps - sum(given)]:
        given[copy] += 1
    return tuple(given)
