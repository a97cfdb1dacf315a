"""Resource sensitivity matrices (Synergy, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["SensitivityMatrix"]


@dataclass(frozen=True, slots=True)
class SensitivityMatrix:
    """Speed over CPUs and memory per GPU, for one model on one GPU type.

    `cpus` (cores per GPU) and `memory` (MiB per GPU) ascend; `speed[i][j]` belongs to `cpus[i]`, `memory[j]`. The
    unit of speed is free: only ratios are used.
    """

    cpus: tuple[float, ...]
    memory: tuple[float, ...]
    speed: tuple[tuple[float, ...], ...]

    def at(self, cpus: float, memory: float) -> float:
        """Speed with this much per GPU: linear between the measured points, flat outside them."""
        columns = [float(np.interp(cpus, self.cpus, column)) for column in zip(*self.speed, strict=True)]
        return float(np.interp(memory, self.memory, columns))
