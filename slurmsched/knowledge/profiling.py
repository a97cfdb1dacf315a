"""Optimistic profiling (Synergy, section 3.1): a whole matrix from a few short runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from slurmsched.knowledge.caching import Cache, fitted
from slurmsched.knowledge.sensitivity import SensitivityMatrix

__all__ = ["Measure", "Profiled", "profile_cpus", "profiled"]

THRESHOLD: Final = 0.10
"""Ends of a stretch that differ by less are not looked between (section 3.1)."""

STRAIGHT: Final = 0.03
"""A middle that lies so near to the line between its ends says that the rest does too. Ours: it spares the runs that a
search by differences alone spends on slopes."""

Measure = Callable[[float, float], float]
"""A short run: the speed with so many CPUs and so much memory (MiB), per GPU."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """The matrix, and the runs it took: CPUs and memory of each, in order. `combinations` are the points it has."""

    matrix: SensitivityMatrix
    runs: tuple[tuple[float, float], ...]

    @property
    def combinations(self) -> int:
        return len(self.matrix.cpus) * max(len(self.matrix.memory), 1)


class _Runs:
    """Each point is run once."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self.known: dict[tuple[float, float], float] = {}

    def __call__(self, cpus: float, memory: float) -> float:
        if (cpus, memory) not in self.known:
            self.known[cpus, memory] = self._measure(cpus, memory)
        return self.known[cpus, memory]


def profile_cpus(speed: Callable[[float], float], points: Sequence[float]) -> dict[float, float]:
    """Speed at each of these CPU counts, ascending, from as few runs as show its shape: first the most and the fewest;
    then the middle of each stretch whose ends differ by `THRESHOLD`, and on both sides of it, until it is straight."""
    found = {points[-1]: speed(points[-1]), points[0]: speed(points[0])}

    def search(low: int, high: int) -> None:
        slow, fast = found[points[low]], found[points[high]]
        if high - low < 2 or fast - slow < THRESHOLD * slow:  # noqa: PLR2004  # there is nothing between neighbours
            return
        middle = (low + high) // 2
        part = (points[middle] - points[low]) / (points[high] - points[low])
        expected, measured = slow + part * (fast - slow), speed(points[middle])
        found[points[middle]] = measured
        if abs(measured - expected) > STRAIGHT * expected:
            search(low, middle)
            search(middle, high)

    search(0, len(points) - 1)
    measured = sorted(found)
    for low, high in pairwise(measured):
        for point in points:
            if low < point < high:
                part = (point - low) / (high - low)
                found[point] = found[low] + part * (found[high] - found[low])
    return {point: found[point] for point in points}


def profiled(measure: Measure, cpus: Sequence[float], memory: Sequence[float]) -> Profiled:
    """The matrix over these CPUs and memories (MiB) per GPU, both ascending.

    CPUs are searched at full memory. With all CPUs, the two least memories are tried: the least tells whether the job
    runs in it at all, the next whether it waits for storage; a third then tells how large its data set is. Everything
    else follows from the cache's bound.
    """
    run = _Runs(measure)
    most = cpus[-1]
    curve = profile_cpus(lambda count: run(count, memory[-1]), cpus)
    whole = curve[most]
    cache = None
    if len(memory) > 1:
        run(most, memory[0])
        cache = _cache(run, most, memory, whole)
    bounds = [run.known.get((most, size), cache.bound(size) if cache else whole) for size in memory]
    speed = tuple(tuple(min(curve[count], bound) for bound in bounds) for count in cpus)
    return Profiled(SensitivityMatrix(tuple(cpus), tuple(memory), speed), tuple(run.known))


def _cache(run: _Runs, most: float, memory: Sequence[float], whole: float) -> Cache | None:
    """What storage allows, from the least memory that the job runs in; None where it never waits for storage."""
    little = run(most, memory[1])
    if len(memory) < 3 or little >= whole * (1 - STRAIGHT):  # noqa: PLR2004  # the least, the next and the most
        return None
    more = run(most, memory[2])
    if more >= whole * (1 - STRAIGHT):
        return Cache(little * (1 - memory[1] / memory[2]), memory[2])
    return fitted((memory[1], little), (memory[2], more))
