"""Which GPUs a job gets (section 4.2)."""

from __future__ import annotations

from slurmsched.policies.synergy.asking import PerGpu, Seat
from slurmsched.policies.synergy.reading import Reading
from slurmsched.policies.synergy.servers import Servers

__all__ = ["seats_for"]


def seats_for(gpus: int, each: PerGpu, servers: Servers, reading: Reading) -> tuple[Seat, ...] | None:
    """Seats with so much beside each GPU; None where there are none."""
    return _fewest_servers(gpus, each, servers) if reading.consolidates else _first_gpus(gpus, each, servers)


def _first_gpus(gpus: int, each: PerGpu, servers: Servers) -> tuple[Seat, ...] | None:
    """The first that fit, in the servers' order."""
    cpus, memory = each
    if gpus == 1:
        for server, free in enumerate(servers.gpus):
            if free and servers.cpus[server] >= cpus and servers.memory[server] >= memory:
                return ((server, 1),)
        return None
    seats: list[Seat] = []
    for server in range(len(servers.gpus)):
        count = servers.room(server, each, gpus)
        if count:
            seats.append((server, count))
            gpus -= count
            if not gpus:
                return tuple(seats)
    return None


def _fewest_servers(gpus: int, each: PerGpu, servers: Servers) -> tuple[Seat, ...] | None:
    """The server with the least free that is just enough; where no single one is, as few as can be."""
    cpus, memory = each[0] * gpus, each[1] * gpus
    best, least = -1, (0, 0.0, 0.0)
    for server, free in enumerate(servers.gpus):
        if free >= gpus and servers.cpus[server] >= cpus and servers.memory[server] >= memory:
            left = (free, servers.cpus[server], servers.memory[server])
            if best < 0 or left < least:
                best, least = server, left
    if best >= 0:
        return ((best, gpus),)
    return _split(gpus, each, servers) if gpus > 1 else None


def _split(gpus: int, each: PerGpu, servers: Servers) -> tuple[Seat, ...] | None:
    """Over the roomiest servers, as many as it takes; the last of them is the tightest that holds the rest."""
    rooms = sorted(((servers.room(server, each, gpus), -server) for server in range(len(servers.gpus))), reverse=True)
    seats: list[Seat] = []
    for place, (room, server) in enumerate(rooms):
        if room == 0:
            return None
        if room >= gpus:
            _, tightest = min((room, -server) for room, server in rooms[place:] if room >= gpus)
            return (*seats, (tightest, gpus))
        seats.append((-server, room))
        gpus -= room
    return None
