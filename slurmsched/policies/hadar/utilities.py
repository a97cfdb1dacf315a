"""What it is worth to end a job so many seconds after it arrived: U_j(f_j - a_j), never rising (section III-A).

Utilities of different jobs are added up and compared by the GPU, so all of these count in whole GPUs at the job's best
speed. (The paper counts iterations per second, of which ResNet-18 does a hundred times as many as ResNet-50.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from slurmsched.policies.hadar.asking import Ask
from slurmsched.policies.hadar.servers import Servers

__all__ = ["UTILITIES", "Utility", "Valuing", "effective_throughput", "sooner", "timely"]

Utility = Callable[[Ask, float], float]
"""Of a job of the round and its completion time in seconds. Never negative, never more for a later end."""

Valuing = Callable[[Sequence[Ask], Servers], Utility]
"""The utility of a round, given all jobs there are and the servers."""

_URGENCY: Final = 10.0
"""How much more a second of slack counts than a second of work. From 10 on the last job ends no sooner; below 4 the
total time grows."""

_SHORTEST: Final = 360.0
"""Seconds, the paper's round: what is shorter is equally short, and no job is infinitely urgent."""


def effective_throughput(queue: Sequence[Ask], servers: Servers) -> Utility:
    """The work of a job's whole life per second of it, E_j N_j / (f_j - a_j): the paper's default. Long jobs come
    first, for they lose the least of their worth by waiting: a short total time, and late completions."""
    whole = {ask.job: _seconds(ask, ask.total, servers) for ask in queue}

    def utility(ask: Ask, completion: float) -> float:
        return ask.workers * whole[ask.job] / completion if 0 < completion < inf else 0.0

    return utility


def sooner(_queue: Sequence[Ask], _servers: Servers) -> Utility:
    """One over the seconds to come: short jobs first."""
    return lambda ask, completion: 1.0 / max(completion - ask.age, _SHORTEST) if completion < inf else 0.0


def timely(queue: Sequence[Ask], servers: Servers) -> Utility:
    """Short jobs first, unless a long one could not end with the last of them any more: its slack is the time that all
    the work takes, less its own. The total time of the paper's default, and completions almost as soon as `sooner`."""
    horizon = _horizon(queue, servers)
    seconds = {ask.job: _seconds(ask, ask.left, servers) for ask in queue}

    def utility(ask: Ask, completion: float) -> float:
        ahead, alone = completion - ask.age, seconds[ask.job]
        if not 0 < ahead < inf:
            return 0.0
        worth = 1.0 / max(alone, _SHORTEST) + _URGENCY / max(horizon - alone, _SHORTEST)
        return ask.workers * alone / ahead * worth

    return utility


def _horizon(queue: Sequence[Ask], servers: Servers) -> float:
    """Seconds until all would be done at the mean speed of each type, or the longest alone at its best."""
    runnable = [ask for ask in queue if servers.best(ask.speeds) > 0]
    if not runnable:
        return 0.0
    part = [
        sum(ask.speeds.together[kind] / servers.best(ask.speeds) for ask in runnable) / len(runnable)
        for kind in range(len(servers.types))
    ]
    whole = sum(gpus * of_best for gpus, of_best in zip(servers.by_type.tolist(), part, strict=True))
    work = sum(ask.workers * _seconds(ask, ask.left, servers) for ask in runnable)
    return float(max(work / whole, *(_seconds(ask, ask.left, servers) for ask in runnable)))


def _seconds(ask: Ask, iterations: float, servers: Servers) -> float:
    """At its best."""
    best = servers.best(ask.speeds)
    return iterations / best if best > 0 else 0.0


UTILITIES: Final[Mapping[str, Valuing]] = {
    "effective-throughput": effective_throughput,
    "sooner": sooner,
    "timely": timely,
}
"""Every utility by name."""
