"""What a GPU costs (section III-B, equations 5 to 7): little while its server is empty, more than anybody gains from it
when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from slurmsched.policies.hadar.asking import Ask
from slurmsched.policies.hadar.servers import Floats, Ints, Servers
from slurmsched.policies.hadar.utilities import Utility

__all__ = ["Prices", "prices"]

_LEAST_RATIO = 2.0
"""Between the dearest and the cheapest price, so that a fuller server is always the dearer one."""


@dataclass(frozen=True, slots=True)
class Prices:
    """`low[r]` and `high[r]`: the price of a type where all of it is free, and where none is (U_min^r and U_max^r)."""

    low: Floats
    high: Floats

    def at(self, servers: Servers, free: Ints) -> Floats:
        """Of one GPU in each pool (equation 5)."""
        taken = 1.0 - free / np.maximum(servers.capacity, 1)
        low, high = self.low[servers.type_of], self.high[servers.type_of]
        return np.asarray(low * (high / low) ** taken, dtype=np.float64)

    @property
    def alpha(self) -> float:
        """The total utility is at least 1 / (2 alpha) of the best there is (theorem 2)."""
        return max([1.0, *(log(high / low) for low, high in zip(self.low, self.high, strict=True))])


def prices(asks: Sequence[Ask], servers: Servers, utility: Utility, period: float) -> Prices:
    """From the jobs there are now. A slot is a round of `period` seconds.

    The paper takes the completion on the fastest type for U_max of every type; here it is that on the type itself,
    since a gang with one GPU of it runs no faster. A free GPU of a slower type costs less in the same proportion, so
    that who hardly gains from the fast one leaves it to others. The horizon T is when the slowest job ends if all of
    them shared the cluster. `eta` is the smallest that equation 9 allows.
    """
    kinds, total = len(servers.types), int(servers.capacity.sum())
    runnable = [ask for ask in asks if ask.left > 0 and servers.best(ask.speeds) > 0]
    high = np.zeros(kinds)
    for ask in runnable:
        for kind, rate in enumerate(ask.speeds.together):
            if rate > 0:
                reached = min(rate, servers.best(ask.speeds))
                high[kind] = max(high[kind], utility(ask, ask.completion(reached)) / ask.workers)
    if not runnable:
        return Prices(np.ones(kinds), np.full(kinds, _LEAST_RATIO))
    slots = [max(1, ceil(ask.left / ask.speeds.worst / period)) * ask.workers for ask in runnable]
    horizon = max(ask.completion(ask.speeds.worst) for ask in runnable) + sum(slots) * period / max(total, 1)
    eta = max(1.0, total / min(slots))
    least = min(utility(ask, horizon) / size for ask, size in zip(runnable, slots, strict=True)) / (4 * eta)
    high = np.where(high > 0, high, high.max(initial=least) or 1.0)
    low = np.minimum((least or np.finfo(float).tiny) * high / high.max(), high / _LEAST_RATIO)
    return Prices(np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64))
