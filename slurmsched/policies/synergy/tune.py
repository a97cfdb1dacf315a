"""Synergy-Tune (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmsched.policies.synergy.asking import Ask, Grant, PerGpu, Seat
from slurmsched.policies.synergy.finding import seats_for
from slurmsched.policies.synergy.handing_back import hand_back
from slurmsched.policies.synergy.reading import Reading
from slurmsched.policies.synergy.servers import Servers
from slurmsched.policies.synergy.victims import victims

__all__ = ["tune"]


def tune(asks: Sequence[Ask], servers: Servers, reading: Reading) -> list[Grant]:
    """Every job that finds GPUs gets a place, and nobody less than is as good as the proportional share.

    1. With its best-case demand. 2. With that cut to the proportional share. 3. Likewise, once jobs on the server have
    been cut that have more than their share. `servers` is used up; jobs that find no GPUs are left out.
    """
    if reading.sorts_by_demand:
        asks = sorted(asks, key=lambda ask: (-ask.gpus, -ask.gpus * ask.best[0], -ask.gpus * ask.best[1], ask.job))
    round_ = _Round(servers, reading)
    for ask in asks:
        round_.place(ask)
    if reading.hands_back:
        round_.hand_back()
    return list(round_.grants.values())


class _Round:
    """The jobs placed so far, and who is on each server."""

    def __init__(self, servers: Servers, reading: Reading) -> None:
        self.grants: dict[int, Grant] = {}
        self._servers = servers
        self._reading = reading
        self._residents: list[list[Grant]] = [[] for _ in servers.gpus]

    def place(self, ask: Ask) -> None:
        cut = self._cut(ask)
        if self._placed(ask, ask.best, reverted=False):
            return
        if ask.demanding and self._placed(ask, cut, reverted=True):
            return
        for server, gpus in self._short_of_cpus_or_memory(ask.gpus):
            missing = self._missing(server, gpus, cut)
            for victim in victims(server, missing, self._residents[server], self._reading):
                self._replace(victim)
        self._placed(ask, cut, reverted=ask.demanding)

    def hand_back(self) -> None:
        for server, residents in enumerate(self._residents):
            hand_back(server, residents, self._servers)

    def _cut(self, ask: Ask) -> PerGpu:
        if not ask.demanding:
            return ask.best
        if self._reading.reverts_only_excess:
            return min(ask.best[0], ask.fair[0]), min(ask.best[1], ask.fair[1])
        return ask.fair

    def _placed(self, ask: Ask, each: PerGpu, *, reverted: bool) -> bool:
        seats = seats_for(ask.gpus, each, self._servers, self._reading)
        if seats is None:
            return False
        self._servers.take(seats, each)
        grant = Grant(ask, seats, each, reverted)
        self.grants[ask.job] = grant
        for server, _ in seats:
            self._residents[server].append(grant)
        return True

    def _short_of_cpus_or_memory(self, gpus: int) -> Iterator[Seat]:
        """Where the GPUs are, CPUs and memory aside."""
        if not self._reading.consolidates and gpus > 1:
            whole = next((server for server, free in enumerate(self._servers.gpus) if free >= gpus), None)
            if whole is not None:
                yield whole, gpus
                return
        if self._reading.consolidates:
            yield from seats_for(gpus, (0.0, 0.0), self._servers, self._reading) or ()
            return
        for free, server in sorted((free, server) for server, free in enumerate(self._servers.gpus) if free):
            yield server, min(free, gpus)
            gpus -= free
            if gpus <= 0:
                return

    def _missing(self, server: int, gpus: int, each: PerGpu) -> PerGpu:
        return (
            max(0.0, gpus * each[0] - self._servers.cpus[server]),
            max(0.0, gpus * each[1] - self._servers.memory[server]),
        )

    def _replace(self, victim: Grant) -> None:
        """The same GPUs with no more than the proportional share beside them."""
        self._servers.give_back(victim.seats, victim.each)
        victim.each = self._cut(victim.ask)
        victim.reverted = victim.reverted or victim.ask.demanding
        victim.replaced = True
        self._servers.take(victim.seats, victim.each)
