"""Synergy-Greedy (section 4): first fit with the whole best-case demand."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.policies.synergy.asking import Ask, Grant
from slurmsched.policies.synergy.finding import seats_for
from slurmsched.policies.synergy.reading import Reading
from slurmsched.policies.synergy.servers import Servers

__all__ = ["greedy"]


def greedy(asks: Sequence[Ask], servers: Servers, reading: Reading) -> list[Grant]:
    """A job whose demand does not fit is passed over, and GPUs may stay idle. `servers` is used up."""
    grants: list[Grant] = []
    left = sum(servers.gpus)
    for ask in asks:
        if ask.gpus > left:
            continue
        seats = seats_for(ask.gpus, ask.best, servers, reading)
        if seats is not None:
            servers.take(seats, ask.best)
            left -= ask.gpus
            grants.append(Grant(ask, seats, ask.best))
    return grants
