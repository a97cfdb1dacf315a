"""Optimistic profiling (Synergy: Mohan et al., OSDI 2022, section 3.1): a sensitivity matrix from a few short runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from slurmsched.knowledge.knowledge import Knowledge
from slurmsched.knowledge.speed import DatasetCache, SensitivityMatrix, fit_cache

DIFFERENCE_THRESHOLD: Final = 0.06
"""Between two CPU counts whose speeds differ by less than this fraction nothing is measured (section 3.1, where it is a
tenth). The line between them is off by half of that on average if the job saturates at once."""

LINEARITY_TOLERANCE: Final = 0.03
"""If the middle of an interval is this close to the line between its ends, the whole interval counts as linear. Not in
the paper: it saves the runs that differences alone would spend on slopes."""

MeasureSpeed = Callable[[float, float], float]
"""A short run: returns the speed with so many CPUs and so much memory (MiB) per GPU."""


@dataclass(frozen=True, slots=True)
class ProfilingResult:
    """The matrix, and the CPUs and memory (MiB) per GPU of each run, in order."""

    matrix: SensitivityMatrix
    runs: tuple[tuple[float, float], ...]

    @property
    def combinations(self) -> int:
        """The number of entries of the matrix."""
        return len(self.matrix.cpus) * max(len(self.matrix.memory), 1)


class _MeasuredOnce:
    """Caches measurements: each point is run once."""

    def __init__(self, measure: MeasureSpeed) -> None:
        self._measure = measure
        self.speeds: dict[tuple[float, float], float] = {}

    def __call__(self, cpus: float, memory: float) -> float:
        if (cpus, memory) not in self.speeds:
            self.speeds[cpus, memory] = self._measure(cpus, memory)
        return self.speeds[cpus, memory]


def profile_cpus(speed: Callable[[float], float], cpu_counts: Sequence[float]) -> dict[float, float]:
    """Returns the speed at each of these ascending CPU counts, interpolated from few runs.

    The most and the fewest are run first. The middle of an interval is run if its ends differ by
    `DIFFERENCE_THRESHOLD`, and so are both halves unless the interval is linear.
    """
    speeds = {cpu_counts[-1]: speed(cpu_counts[-1]), cpu_counts[0]: speed(cpu_counts[0])}

    def search(low: int, high: int) -> None:
        slow, fast = speeds[cpu_counts[low]], speeds[cpu_counts[high]]
        if high - low < 2 or fast - slow < DIFFERENCE_THRESHOLD * slow:  # noqa: PLR2004  # neighbours
            return
        middle = (low + high) // 2
        part = (cpu_counts[middle] - cpu_counts[low]) / (cpu_counts[high] - cpu_counts[low])
        expected, measured = slow + part * (fast - slow), speed(cpu_counts[middle])
        speeds[cpu_counts[middle]] = measured
        if abs(measured - expected) > LINEARITY_TOLERANCE * expected:
            search(low, middle)
            search(middle, high)

    search(0, len(cpu_counts) - 1)
    measured = sorted(speeds)
    for low, high in pairwise(measured):
        for point in cpu_counts:
            if low < point < high:
                part = (point - low) / (high - low)
                speeds[point] = speeds[low] + part * (speeds[high] - speeds[low])
    return {point: speeds[point] for point in cpu_counts}


def profile_matrix(measure: MeasureSpeed, cpus: Sequence[float], memory: Sequence[float]) -> ProfilingResult:
    """Returns the matrix over these CPUs and memory sizes (MiB) per GPU, both ascending.

    CPUs are searched at full memory. With all CPUs, the two smallest memory sizes are run: the smallest shows whether
    the job can run in it, the next whether it waits for storage; a third then gives the size of its data set. All
    other entries follow from the bound of `DatasetCache`.
    """
    run = _MeasuredOnce(measure)
    most = cpus[-1]
    curve = profile_cpus(lambda count: run(count, memory[-1]), cpus)
    whole = curve[most]
    cache = None
    if len(memory) > 1:
        run(most, memory[0])
        cache = _fit_cache_from_runs(run, most, memory, whole)
    bounds = [run.speeds.get((most, size), cache.speed_bound(size) if cache else whole) for size in memory]
    speed = tuple(tuple(min(curve[count], bound) for bound in bounds) for count in cpus)
    return ProfilingResult(SensitivityMatrix(tuple(cpus), tuple(memory), speed), tuple(run.speeds))


def _fit_cache_from_runs(run: _MeasuredOnce, most: float, memory: Sequence[float], whole: float) -> DatasetCache | None:
    """Returns the cache fitted to runs with little memory; None if the job never waits for storage."""
    little = run(most, memory[1])
    if len(memory) < 3 or little >= whole * (1 - LINEARITY_TOLERANCE):  # noqa: PLR2004  # the least, the next and the most
        return None
    more = run(most, memory[2])
    if more >= whole * (1 - LINEARITY_TOLERANCE):
        return DatasetCache(little * (1 - memory[1] / memory[2]), memory[2])
    return fit_cache((memory[1], little), (memory[2], more))


SERVER_CPUS: Final = 24
SERVER_MEMORY_STEPS: Final = 10
"""The paper's node: 24 CPUs, 500 GB in steps of 50 GB."""


@dataclass(frozen=True, slots=True)
class ProfilingAccuracy:
    """The accuracy of optimistic profiling for one model: its runs, the entries of the matrix, and the mean and maximum
    relative error of the estimated speeds at the measured points."""

    model: str
    runs: int
    combinations: int
    mean_error: float
    max_error: float


def profiling_accuracy(knowledge: Knowledge) -> Mapping[str, ProfilingAccuracy]:
    """Compares optimistic profiling with each fully measured matrix that includes memory, by model.

    Runs read from the matrix, on a grid of 24 CPU counts and 10 memory sizes.
    """
    accuracy_by_model: dict[str, ProfilingAccuracy] = {}
    for name, profile in knowledge.models.items():
        matrix = profile.matrix("")
        if matrix is not None and matrix.knows_memory:
            accuracy_by_model[name] = _accuracy_of(name, matrix)
    return accuracy_by_model


def _accuracy_of(name: str, matrix: SensitivityMatrix) -> ProfilingAccuracy:
    cpus = tuple(float(count) for count in range(1, SERVER_CPUS + 1))
    grid = sorted({*matrix.memory[:2], *np.linspace(matrix.memory[1], matrix.memory[-1], SERVER_MEMORY_STEPS - 1)[1:]})
    estimated = profile_matrix(matrix.speed_at, cpus, tuple(float(size) for size in grid))
    real = np.array(matrix.speed)
    guess = np.array([[estimated.matrix.speed_at(count, size) for size in matrix.memory] for count in matrix.cpus])
    errors = np.abs(guess - real) / real
    return ProfilingAccuracy(
        name, len(estimated.runs), estimated.combinations, float(errors.mean()), float(errors.max())
    )
