"""One round of Hadar (algorithm 1): leases go on unless starting anew pays for its restarts (section IV-B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmsched.policies.hadar.asking import Allocation, Ask
from slurmsched.policies.hadar.dual import STATES, admit, fill
from slurmsched.policies.hadar.prices import Prices, prices
from slurmsched.policies.hadar.servers import Servers
from slurmsched.policies.hadar.utilities import Utility, Valuing, effective_throughput

__all__ = ["Hadar"]


@dataclass(frozen=True, slots=True)
class Hadar:
    """How rounds are decided. Seconds.

    `restart` is what a job loses that gets other GPUs, or none. `period` is the time to the next round, in which a
    change has to pay. `states` are followed by the dual subroutine. `conserving`: jobs that fail the payoff test get
    what would be idle. `moving`: jobs may be given other GPUs than they have.
    """

    valuing: Valuing = effective_throughput
    restart: float = 10.0
    period: float = 360.0
    states: int = STATES
    conserving: bool = True
    moving: bool = True

    def decide(
        self, queue: Sequence[Ask], servers: Servers, running: Mapping[str, Allocation] | None = None
    ) -> dict[str, Allocation]:
        """Where each job of the queue runs in the coming round; those that are not named wait."""
        leases = dict(running or {})
        market = _Market(self, queue, servers)
        kept = market.solved(leases)
        if not self.moving or not leases:
            return kept
        anew = market.solved({})
        unmoved = {job: leases[job] for job in anew if job in leases and _alike(servers, anew[job], leases[job])}
        anew = market.solved(unmoved)
        return anew if market.worth(anew, leases) > market.worth(kept, leases) else kept

    def worth(
        self,
        queue: Sequence[Ask],
        servers: Servers,
        places: Mapping[str, Allocation],
        running: Mapping[str, Allocation],
    ) -> float:
        """What these places are worth to all jobs together, restarts paid."""
        return _Market(self, queue, servers).worth(places, running)


class _Market:
    """One round's jobs, servers and prices."""

    def __init__(self, hadar: Hadar, queue: Sequence[Ask], servers: Servers) -> None:
        self._hadar, self._queue, self._servers = hadar, queue, servers
        self._utility: Utility = hadar.valuing(queue, servers)
        self._prices: Prices = prices(queue, servers, self._utility, hadar.period)

    def solved(self, leases: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """These leases, and places for as many of the others as pay."""
        found, hadar, servers = dict(leases), self._hadar, self._servers
        waiting = [ask for ask in self._queue if ask.job not in found]
        free = servers.without(found.values())
        found |= admit(waiting, servers, free, self._prices, self._utility, states=hadar.states)
        if hadar.conserving:
            waiting = [ask for ask in waiting if ask.job not in found]
            found |= fill(waiting, servers, servers.without(found.values()), self._prices, self._utility)
        return found

    def worth(self, places: Mapping[str, Allocation], leases: Mapping[str, Allocation]) -> float:
        """The sum of utilities, less a restart for every job that loses or changes what it has."""
        total = 0.0
        for ask in self._queue:
            place, lease = places.get(ask.job), leases.get(ask.job)
            if place is not None:
                delay = self._hadar.restart if lease is not None and lease != place else 0.0
                total += self._at(ask, place, delay)
            elif lease is not None:
                total -= self._at(ask, lease) - self._at(ask, lease, self._hadar.restart)
        return total

    def _at(self, ask: Ask, place: Allocation, delay: float = 0.0) -> float:
        return self._utility(ask, ask.completion(self._servers.rate(ask, place), delay))


def _alike(servers: Servers, one: Allocation, other: Allocation) -> bool:
    """Whether both are as many GPUs of each type: then the one is no better than the other."""
    return servers.counts(one) == servers.counts(other)
