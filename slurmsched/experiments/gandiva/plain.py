"""Plain stride over a whole cluster: nobody passes a gang that does not fit. The yardstick for utilisation."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.policies.gandiva_fair import Strider

__all__ = ["plain_utilisation"]


def plain_utilisation(queue: Sequence[Strider], servers: int, gpus: int, quanta: int) -> float:
    """The part of all GPU time that is used. Every job lies on one server, the first that has room for it."""
    passes, used = {job.job: job.stride for job in queue}, 0
    for _ in range(quanta):
        room = [gpus] * servers
        for job in sorted(queue, key=lambda job: passes[job.job]):
            server = next((at for at, free in enumerate(room) if free >= job.size), None)
            if server is None:
                break
            room[server] -= job.size
            passes[job.job] += job.stride
            used += job.size
    return used / (servers * gpus * quanta)
