"""What it is worth to end a job so many seconds after it arrived: U_j(f_j - a_j), never rising (section III-A).

Utilities of different jobs are added up and compared by the GPU, so all of these count in whole GPUs at the job's best
speed. (The paper counts iterations per second, of which ResNet-18 does a hundred times as many as ResNet-50.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from slurmsched.policies.hadar.asking import Ask

__all__ = ["UTILITIES", "Utility", "effective_throughput", "sooner", "speed"]

Utility = Callable[[Ask, float], float]
"""Of a job and its completion time in seconds. Never negative, never more for a later end."""


def effective_throughput(ask: Ask, completion: float) -> float:
    """The work of its whole life per second of it, E_j N_j / (f_j - a_j): the paper's default."""
    return ask.workers * _seconds(ask, ask.total) / completion if completion < inf else 0.0


def speed(ask: Ask, completion: float) -> float:
    """The work that is left per second to come: what is past counts for nobody."""
    ahead = completion - ask.age
    return ask.workers * _seconds(ask, ask.left) / ahead if 0 < ahead < inf else 0.0


def sooner(ask: Ask, completion: float) -> float:
    """GPUs over the seconds to come: short jobs first, for a short mean completion time."""
    ahead = completion - ask.age
    return ask.workers / ahead / max(ask.workers, 1) if 0 < ahead < inf else 0.0


def _seconds(ask: Ask, iterations: float) -> float:
    return iterations / ask.speeds.best if ask.speeds.best > 0 else 0.0


UTILITIES: Final[Mapping[str, Utility]] = {
    "effective-throughput": effective_throughput,
    "speed": speed,
    "sooner": sooner,
}
"""Every utility by name."""
