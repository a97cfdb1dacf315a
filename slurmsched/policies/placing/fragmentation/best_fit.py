"""Best fit, one of the five heuristics that FGD is compared with (section 6.1): the node with the least left over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.scoring import smallest_device
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["LARGEST_CPU", "LARGEST_GPU", "BestFit"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST_CPU = 128_000
LARGEST_GPU = 8_000
"""A node's most: what CPUs (thousandths) and GPUs (milli) are measured against."""


@dataclass(frozen=True, slots=True)
class BestFit:
    """The weighted sum of idle CPUs and idle GPUs that would remain, both as parts of the largest node's. `rounded` as
    the authors' scheduler has it: in whole hundredths."""

    rounded: bool = False
    name: str = "best_fit"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        cpu = (idle.cpu[nodes] - task.cpu) / LARGEST_CPU
        gpu = (idle.gpus[nodes].sum(axis=1) - task.demand) / LARGEST_GPU
        score = 100 * (1 - (0.5 * cpu + 0.5 * gpu))
        return np.asarray(np.trunc(score) if self.rounded else score, dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return smallest_device(idle, task, node)
