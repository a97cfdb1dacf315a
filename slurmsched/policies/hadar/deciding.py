"""One round of Hadar (algorithm 1): leases go on unless starting anew pays for its restarts (section IV-B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmsched.policies.hadar.asking import Allocation, Ask
from slurmsched.policies.hadar.dual import STATES, admit, fill
from slurmsched.policies.hadar.prices import Prices, prices
from slurmsched.policies.hadar.servers import Servers
from slurmsched.policies.hadar.utilities import Utility, effective_throughput

__all__ = ["Hadar"]


@dataclass(frozen=True, slots=True)
class Hadar:
    """How rounds are decided. Seconds.

    `restart` is what a job loses that gets other GPUs, or none. `period` is the time to the next round, in which a
    change has to pay. `states` are followed by the dual subroutine. `conserving`: jobs that fail the payoff test get
    what would be idle. `moving`: jobs may be given other GPUs than they have.
    """

    utility: Utility = effective_throughput
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
        known = prices(queue, servers, self.utility, self.period)
        kept = self._solved(queue, servers, known, leases)
        if not self.moving or not leases:
            return kept
        anew = self._solved(queue, servers, known, {})
        unmoved = {job: leases[job] for job in anew if job in leases and _same_types(servers, anew[job], leases[job])}
        anew = self._solved(queue, servers, known, unmoved)
        gain = self._worth(queue, servers, anew, leases) - self._worth(queue, servers, kept, leases)
        return anew if gain > 0 else kept

    def _solved(
        self, queue: Sequence[Ask], servers: Servers, known: Prices, leases: Mapping[str, Allocation]
    ) -> dict[str, Allocation]:
        found = dict(leases)
        waiting = [ask for ask in queue if ask.job not in found]
        found |= admit(waiting, servers, servers.without(found.values()), known, self.utility, self.states)
        if self.conserving:
            waiting = [ask for ask in waiting if ask.job not in found]
            found |= fill(waiting, servers, servers.without(found.values()), known, self.utility)
        return found

    def _worth(
        self, queue: Sequence[Ask], servers: Servers, places: Mapping[str, Allocation], leases: Mapping[str, Allocation]
    ) -> float:
        """The sum of utilities, with a restart for every job that loses or changes what it has."""
        total = 0.0
        for ask in queue:
            place, lease = places.get(ask.job), leases.get(ask.job)
            if place is not None:
                delay = self.restart if lease is not None and lease != place else 0.0
                total += self.utility(ask, ask.completion(servers.rate(ask, place), delay))
            elif lease is not None:
                rate = servers.rate(ask, lease)
                total -= self.utility(ask, ask.completion(rate))
                total += self.utility(ask, ask.completion(rate, self.restart))
        return total


def _same_types(servers: Servers, one: Allocation, other: Allocation) -> bool:
    """Whether both are as many GPUs of each type: then the one is no better than the other."""
    return _by_type(servers, one) == _by_type(servers, other)


def _by_type(servers: Servers, allocation: Allocation) -> dict[int, int]:
    found: dict[int, int] = {}
    for pool, gpus in allocation:
        kind = int(servers.type_of[pool])
        found[kind] = found.get(kind, 0) + gpus
    return found
