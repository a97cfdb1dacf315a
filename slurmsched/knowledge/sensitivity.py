"""Resource sensitivity matrices (Synergy, section 3.1)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["SATURATED", "SensitivityMatrix"]

SATURATED: Final = 0.99
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

    def at(self, cpus: float, memory: float) -> float:
        """Speed with this much per GPU: linear between the measured points, flat outside them."""
        lower, upper, weight = _between(self.cpus, cpus)
        left, right, part = _between(self.memory, memory) if self.memory else (0, 0, 0.0)
        low = self.speed[lower][left] * (1 - part) + self.speed[lower][right] * part
        high = self.speed[upper][left] * (1 - part) + self.speed[upper][right] * part
        return low * (1 - weight) + high * weight

    def least(self, speed: float, cpus: float, memory: float) -> tuple[float, float]:
        """The least CPUs, then the least memory, per GPU that reach `speed`, out of the measured points below the two
        caps and the caps themselves. The caps where nothing reaches it."""
        enough = speed * _ROUNDING
        fewest = next((c for c in self.cpus if c < cpus and self.at(c, memory) >= enough), cpus)
        smallest = next((m for m in self.memory if m < memory and self.at(fewest, m) >= enough), memory)
        return fewest, smallest

    def floor(self, cpus: float, memory: float) -> tuple[float, float]:
        """The least CPUs and memory per GPU with which a job is no slower than with these, its proportional share."""
        return self.least(self.at(cpus, memory), cpus, memory)

    def demand(self, cpus: float, memory: float) -> tuple[float, float]:
        """The minimum CPUs and memory per GPU that saturate the speed a job can reach below these caps: its best-case
        demand vector (Synergy, section 3.2)."""
        peak = max(self.at(c, memory) for c in (cpus, *(c for c in self.cpus if c < cpus)))
        return self.least(peak * SATURATED, cpus, memory)


def _between(points: Sequence[float], value: float) -> tuple[int, int, float]:
    """The two points around the value and how far it lies towards the second, from 0 to 1."""
    after = bisect_right(points, value)
    if after == 0:
        return 0, 0, 0.0
    if after == len(points):
        return after - 1, after - 1, 0.0
    return after - 1, after, (value - points[after - 1]) / (points[after] - points[after - 1])
