"""Dot product (section 6.1, after Tetris, SIGCOMM 2014): the node whose idle resources are least like the demand.

Tetris takes the largest product; the comparison in the paper takes the smallest, which packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.best_fit import LARGEST_CPU, LARGEST_GPU
from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.scoring import smallest_device
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["DotProduct"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DotProduct:
    """CPUs and GPUs as parts of the largest node's. `rounded` as the authors' scheduler has it: in whole hundredths."""

    rounded: bool = False
    name: str = "dot_product"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        cpu = (idle.cpu[nodes] / LARGEST_CPU) * (task.cpu / LARGEST_CPU)
        gpu = (idle.gpus[nodes].sum(axis=1) / LARGEST_GPU) * (task.demand / LARGEST_GPU)
        score = 100 * (1 - 0.5 * (cpu + gpu))
        return np.asarray(np.trunc(score) if self.rounded else score, dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return smallest_device(idle, task, node)
