"""Workloads made up by published distributions. Same seed, same bytes; each concern has a random stream of its own, so
that another arrival rate does not change a single duration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from slurmsched.traces.errors import TraceError
from slurmsched.traces.generating.gavel import gavel
from slurmsched.traces.generating.hadar import hadar
from slurmsched.traces.generating.shockwave import shockwave
from slurmsched.traces.generating.synergy import Split, synergy
from slurmsched.traces.trace import Trace

__all__ = ["GENERATORS", "Split", "gavel", "generate", "hadar", "shockwave", "synergy"]

GENERATORS: Final[Mapping[str, Callable[[int, int, float], Trace]]] = {
    "synergy": synergy,
    "synergy-multi": lambda jobs, seed, rate: synergy(jobs, seed, rate, multi=True),
    "gavel": gavel,
    "shockwave": shockwave,
    "hadar": lambda jobs, seed, _rate: hadar(jobs, seed),
}
"""Every generator by name, given how many jobs, the seed, and the jobs per hour."""


def generate(name: str, jobs: int, seed: int, rate: float) -> Trace:
    """So many jobs of a named workload; `rate` is in jobs per hour. Raises TraceError."""
    if name not in GENERATORS:
        raise TraceError(f"there is no generator '{name}': known are {', '.join(GENERATORS)}")
    if jobs < 1 or not 0 < rate < float("inf"):
        raise TraceError(f"{name}: expected at least one job and a rate above 0, not {jobs} jobs at {rate:g} an hour")
    return GENERATORS[name](jobs, seed, rate)
