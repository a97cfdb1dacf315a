"""GPU-proportional allocation (section 2): the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.policies.synergy.asking import Ask, Grant
from slurmsched.policies.synergy.finding import seats_for
from slurmsched.policies.synergy.reading import Reading
from slurmsched.policies.synergy.servers import Servers

__all__ = ["proportional"]


def proportional(asks: Sequence[Ask], servers: Servers, reading: Reading) -> list[Grant]:
    """Everybody gets the proportional share. `servers` is used up; jobs that find no GPUs are left out."""
    grants: list[Grant] = []
    for ask in asks:
        seats = seats_for(ask.gpus, ask.fair, servers, reading)
        if seats is not None:
            servers.take(seats, ask.fair)
            grants.append(Grant(ask, seats, ask.fair, reverted=True))
    return grants
