"""A whole matrix from a few short runs on the cluster (optimistic profiling: Synergy, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmsched.knowledge.profiling import Profiled, profile_cpus, profiled
from slurmsched.knowledge.sensitivity import SensitivityMatrix
from slurmsched.profiling.trial import Shape, Trial

__all__ = ["measured"]


def measured(
    trial: Trial,
    *,
    gpu_type: str,
    gpus: int,
    cpus: Sequence[float],
    memory: Sequence[float],
    say: Callable[[Shape, float], None],
) -> Profiled:
    """The matrix over these CPUs and memories (MiB) per GPU, both ascending; where no memory is named, over CPUs alone.

    `say` is told each run and its steps per second. Raises ProfilingError, BackendError.
    """
    runs: list[tuple[float, float]] = []

    def speed(count: float, size: float | None) -> float:
        shape = Shape(gpus, gpu_type, round(count * gpus), None if size is None else round(size * gpus))
        rate = trial.rate(shape)
        runs.append((count, size or 0.0))
        say(shape, rate)
        return rate

    if memory:
        return profiled(speed, cpus, memory)
    curve = profile_cpus(lambda count: speed(count, None), cpus)
    matrix = SensitivityMatrix(tuple(cpus), (), tuple((curve[count],) for count in cpus))
    return Profiled(matrix, tuple(runs))
