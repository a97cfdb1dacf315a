"""Models of speed: scaling with GPUs, sensitivity to CPUs and memory, and the effect of caching the data set.

Sensitivity matrices and best-case demands are from Synergy (Mohan et al., OSDI 2022, section 3), the cache is MinIO
(Mohan et al., VLDB 2021): in every epoch a fixed fraction of the data set is in memory, the rest is read from storage.
A job is as fast as its CPUs or the storage allow, whichever is less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class Scaling:
    """The work per second of one model on one GPU type, in a unit that all types of the model share.

    `rate[i]` is that of the whole job on `gpus[i]` GPUs of one node, 0 if it does not fit into GPU memory; `gpus` are
    ascending. `apart` is the same on more than one node, empty if not measured. `beside` is the fraction of its speed
    that the job keeps while another model, the key, uses the same GPU.
    """

    gpus: tuple[int, ...]
    rate: tuple[float, ...]
    apart: tuple[float, ...] = ()
    beside: Mapping[str, float] = field(default_factory=dict)

    def scaled_by(self, factor: float) -> Scaling:
        """Returns the same scaling in another unit."""
        rate, apart = (tuple(speed * factor for speed in speeds) for speeds in (self.rate, self.apart))
        return Scaling(self.gpus, rate, apart, self.beside)

    def rate_at(self, gpus: int, nodes: int = 1) -> float:
        """Returns the work per second: per GPU interpolated linearly, and constant outside the measured counts."""
        rates = self.apart if self.apart and nodes > 1 else self.rate
        after = bisect_right(self.gpus, gpus)
        if after == 0 or after == len(self.gpus):
            edge = 0 if after == 0 else after - 1
            return rates[edge] * gpus / self.gpus[edge]
        low, high = self.gpus[after - 1], self.gpus[after]
        part = (gpus - low) / (high - low)
        return gpus * (rates[after - 1] / low * (1 - part) + rates[after] / high * part)


SATURATION: Final = 0.99
"""Fraction of the best speed that counts as saturated, because measured curves never become flat."""
_ROUNDING: Final = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class SensitivityMatrix:
    """Speed over CPUs and memory per GPU, for one model on one GPU type (Synergy, section 3.1).

    `cpus` (cores per GPU) and `memory` (MiB per GPU) are ascending; `speed[i][j]` belongs to `cpus[i]` and `memory[j]`.
    The unit of speed is arbitrary: only ratios are used. If only CPUs were measured, `memory` is empty and each row has
    one speed.
    """

    cpus: tuple[float, ...]
    memory: tuple[float, ...]
    speed: tuple[tuple[float, ...], ...]

    @property
    def knows_memory(self) -> bool:
        """Whether memory was measured; if not, a job never gets less than its share of it."""
        return bool(self.memory)

    def speed_at(self, cpus: float, memory: float) -> float:
        """Returns the speed with so many CPUs and MiB per GPU: linear between measured points, constant outside."""
        lower, upper, weight = _interpolation_points(self.cpus, cpus)
        left, right, part = _interpolation_points(self.memory, memory) if self.memory else (0, 0, 0.0)
        low = self.speed[lower][left] * (1 - part) + self.speed[lower][right] * part
        high = self.speed[upper][left] * (1 - part) + self.speed[upper][right] * part
        return low * (1 - weight) + high * weight

    def minimum_for_speed(self, speed: float, cpus: float, memory: float) -> tuple[float, float]:
        """Returns the fewest CPUs, then the least memory (MiB), per GPU that reach `speed`.

        Candidates are the measured points below the limits `cpus` and `memory`, and the limits themselves, which are
        returned if nothing reaches the speed.
        """
        enough = speed * _ROUNDING
        fewest = next((c for c in self.cpus if c < cpus and self.speed_at(c, memory) >= enough), cpus)
        smallest = next((m for m in self.memory if m < memory and self.speed_at(fewest, m) >= enough), memory)
        return fewest, smallest

    def minimum_for_share(self, cpus: float, memory: float) -> tuple[float, float]:
        """Returns the fewest CPUs and least memory per GPU that are no slower than these, its proportional share."""
        return self.minimum_for_speed(self.speed_at(cpus, memory), cpus, memory)

    def best_case_demand(self, cpus: float, memory: float) -> tuple[float, float]:
        """Returns the best-case demand vector (Synergy, section 3.2): the minimum CPUs and memory per GPU that saturate
        the speed reachable within these limits."""
        peak = max(self.speed_at(c, memory) for c in (cpus, *(c for c in self.cpus if c < cpus)))
        return self.minimum_for_speed(peak * SATURATION, cpus, memory)


def _interpolation_points(points: Sequence[float], value: float) -> tuple[int, int, float]:
    """Returns the indices of the two points around the value, and its position between them from 0 to 1."""
    after = bisect_right(points, value)
    if after == 0:
        return 0, 0, 0.0
    if after == len(points):
        return after - 1, after - 1, 0.0
    return after - 1, after, (value - points[after - 1]) / (points[after] - points[after - 1])


@dataclass(frozen=True, slots=True)
class DatasetCache:
    """The bound that storage sets on speed: with m MiB per GPU in memory, uncached_speed / (1 - m / dataset_memory).

    `uncached_speed` is the speed without a cache, `dataset_memory` the MiB per GPU that hold the whole data set.
    """

    uncached_speed: float
    dataset_memory: float

    def speed_bound(self, memory: float) -> float:
        """Returns the speed that storage allows with so much memory (MiB per GPU); infinite if all data is cached."""
        missed = 1 - memory / self.dataset_memory
        return self.uncached_speed / missed if missed > 0 else inf


def fit_cache(less: tuple[float, float], more: tuple[float, float]) -> DatasetCache | None:
    """Returns the cache that explains two measurements (memory, speed) of a job that waits for storage in both; None if
    more memory did not make it faster."""
    (little, slow), (much, fast) = less, more
    if not 0 < slow < fast or not 0 < little < much:
        return None
    dataset = (fast * much - slow * little) / (fast - slow)
    return DatasetCache(slow * (1 - little / dataset), dataset)
