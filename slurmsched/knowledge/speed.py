"""How a model's speed grows with GPUs of one type, and what it loses across nodes and beside another job.

Resource sensitivity matrices (Synergy, section 3.1).

What less memory costs a job whose data set is cached in it (Synergy, section 3.1; MinIO: Mohan et al., VLDB 2021).

With such a cache a fixed part of the data set is found in memory in every epoch. The rest comes from storage, which
delivers so much and no more: a job is as fast as its CPUs let it, or as the storage lets it, whichever is less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class Scaling:
    """Work per second of one model on one GPU type, in a unit that all types of the model share.

    `rate[i]` is that of the whole job on `gpus[i]` GPUs of one node; `gpus` ascend. 0 is a job that cannot run there,
    for lack of GPU memory. `apart` is the same on more than one node, empty where it was not measured. `beside` is what
    part of its speed a job keeps while one of another model uses the same GPU.
    """

    gpus: tuple[int, ...]
    rate: tuple[float, ...]
    apart: tuple[float, ...] = ()
    beside: Mapping[str, float] = field(default_factory=dict)

    def scaled_by(self, factor: float) -> Scaling:
        """The same in another unit."""
        rate, apart = (tuple(speed * factor for speed in speeds) for speeds in (self.rate, self.apart))
        return Scaling(self.gpus, rate, apart, self.beside)

    def rate_at(self, gpus: int, nodes: int = 1) -> float:
        """Work per second: what was measured, linear per GPU between that, and outside it linear in GPUs."""
        rates = self.apart if self.apart and nodes > 1 else self.rate
        after = bisect_right(self.gpus, gpus)
        if after == 0 or after == len(self.gpus):
            edge = 0 if after == 0 else after - 1
            return rates[edge] * gpus / self.gpus[edge]
        low, high = self.gpus[after - 1], self.gpus[after]
        part = (gpus - low) / (high - low)
        return gpus * (rates[after - 1] / low * (1 - part) + rates[after] / high * part)


SATURATION: Final = 0.99
"""This much of the best speed counts as saturated: measured curves never go quite flat."""
_ROUNDING: Final = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class SensitivityMatrix:
    """Speed over CPUs and memory per GPU, for one model on one GPU type.

    `cpus` (cores per GPU) and `memory` (MiB per GPU) ascend; `speed[i][j]` belongs to `cpus[i]`, `memory[j]`. The
    unit of speed is free: only ratios are used. Where only CPUs were measured `memory` is empty and each row has one
    speed.
    """

    cpus: tuple[float, ...]
    memory: tuple[float, ...]
    speed: tuple[tuple[float, ...], ...]

    @property
    def knows_memory(self) -> bool:
        """Whether memory was measured at all; where not, no memory is claimed to be enough."""
        return bool(self.memory)

    def speed_at(self, cpus: float, memory: float) -> float:
        """Speed with this much per GPU: linear between the measured points, flat outside them."""
        lower, upper, weight = _interpolation_points(self.cpus, cpus)
        left, right, part = _interpolation_points(self.memory, memory) if self.memory else (0, 0, 0.0)
        low = self.speed[lower][left] * (1 - part) + self.speed[lower][right] * part
        high = self.speed[upper][left] * (1 - part) + self.speed[upper][right] * part
        return low * (1 - weight) + high * weight

    def minimum_for_speed(self, speed: float, cpus: float, memory: float) -> tuple[float, float]:
        """The least CPUs, then the least memory, per GPU that reach `speed`, out of the measured points below the two
        caps and the caps themselves. The caps where nothing reaches it."""
        enough = speed * _ROUNDING
        fewest = next((c for c in self.cpus if c < cpus and self.speed_at(c, memory) >= enough), cpus)
        smallest = next((m for m in self.memory if m < memory and self.speed_at(fewest, m) >= enough), memory)
        return fewest, smallest

    def minimum_for_share(self, cpus: float, memory: float) -> tuple[float, float]:
        """The least CPUs and memory per GPU with which a job is no slower than with these, its proportional share."""
        return self.minimum_for_speed(self.speed_at(cpus, memory), cpus, memory)

    def best_case_demand(self, cpus: float, memory: float) -> tuple[float, float]:
        """The minimum CPUs and memory per GPU that saturate the speed a job can reach below these caps: its best-case
        demand vector (Synergy, section 3.2)."""
        peak = max(self.speed_at(c, memory) for c in (cpus, *(c for c in self.cpus if c < cpus)))
        return self.minimum_for_speed(peak * SATURATION, cpus, memory)


def _interpolation_points(points: Sequence[float], value: float) -> tuple[int, int, float]:
    """The two points around the value and how far it lies towards the second, from 0 to 1."""
    after = bisect_right(points, value)
    if after == 0:
        return 0, 0, 0.0
    if after == len(points):
        return after - 1, after - 1, 0.0
    return after - 1, after, (value - points[after - 1]) / (points[after] - points[after - 1])


@dataclass(frozen=True, slots=True)
class DatasetCache:
    """`uncached` is the speed at which storage alone can feed the job, `dataset` the memory (MiB per GPU) that holds
    all its data: with m in memory, storage feeds it at uncached / (1 - m / dataset)."""

    uncached_speed: float
    dataset_memory: float

    def speed_bound(self, memory: float) -> float:
        """The most speed that storage allows with so much memory; infinite where everything is cached."""
        missed = 1 - memory / self.dataset_memory
        return self.uncached_speed / missed if missed > 0 else inf


def fit_cache(less: tuple[float, float], more: tuple[float, float]) -> DatasetCache | None:
    """The cache that explains two measurements, each memory and speed, of a job that waits for storage in both; None
    where more memory did not make it faster."""
    (little, slow), (much, fast) = less, more
    if not 0 < slow < fast or not 0 < little < much:
        return None
    dataset = (fast * much - slow * little) / (fast - slow)
    return DatasetCache(slow * (1 - little / dataset), dataset)
