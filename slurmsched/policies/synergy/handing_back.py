"""What is spare once everybody has a place, handed out again. Ours: in the paper a job that was cut stays cut.

Step by step, each to the job that gains most speed for the part of a server that it takes. Jobs on several servers are
left as they are: their parts must stay equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from slurmsched.policies.synergy.asking import Grant, PerGpu
from slurmsched.policies.synergy.servers import Servers

__all__ = ["hand_back"]

_Step = tuple[float, int, PerGpu]
"""Gain (negative, so that the largest comes first), place among the jobs of the server, what each GPU would have."""


def hand_back(server: int, residents: Iterable[Grant], servers: Servers) -> None:
    """Give the jobs that lie on this server alone what is free on it, as far as it makes them faster."""
    alone = [grant for grant in residents if len(grant.seats) == 1]
    steps = [step for place, grant in enumerate(alone) if (step := _best(place, grant, server, servers)) is not None]
    heapify(steps)
    while steps:
        _, place, each = heappop(steps)
        grant = alone[place]
        servers.give_back(grant.seats, grant.each)
        if servers.room(server, each, grant.ask.gpus) == grant.ask.gpus:
            grant.each = each
        servers.take(grant.seats, grant.each)
        if (step := _best(place, grant, server, servers)) is not None:
            heappush(steps, step)


def _best(place: int, grant: Grant, server: int, servers: Servers) -> _Step | None:
    """The step that brings this job most of those there is room for."""
    gpus, (cpus, memory) = grant.ask.gpus, grant.each
    room = cpus + servers.cpus[server] / gpus, memory + servers.memory[server] / gpus
    now = grant.ask.speed_at(grant.each)
    best: _Step | None = None
    for more_cpus, more_memory, speed in grant.ask.ladder:
        wanted = max(cpus, more_cpus), max(memory, more_memory)
        if speed <= now or wanted[0] > room[0] or wanted[1] > room[1]:
            continue
        part = (wanted[0] - cpus) / max(grant.ask.fair[0], 1e-9) + (wanted[1] - memory) / max(grant.ask.fair[1], 1e-9)
        step = (-(speed - now) / max(part, 1e-9), place, wanted)
        best = step if best is None else min(best, step)
    return best
