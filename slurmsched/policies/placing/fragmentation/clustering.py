"""GPU clustering (section 6.1, after Gandiva, OSDI 2018): tasks that ask alike are kept on nodes of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.best_fit import LARGEST_GPU
from slurmsched.policies.placing.fragmentation.idle import TAGS, Idle
from slurmsched.policies.placing.fragmentation.scoring import smallest_device
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["GpuClustering"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GpuClustering:
    """75 where only tasks of as many GPUs run, 50 where such run among others, 25 where none runs, 0 elsewhere; and up
    to 25 the fuller the node is. Tasks without GPUs have no preference."""

    name: str = "clustering"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        if not task.gpus:
            return np.zeros(len(nodes))
        width = 0 if task.partial else task.gpus
        tag = max(place for place, known in enumerate(TAGS) if known <= width)
        present = idle.tags[nodes] > 0
        kinds = present.sum(axis=1)
        base = np.where(present[:, tag], np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
        full = 25 * (LARGEST_GPU - idle.gpus[nodes].sum(axis=1)) // LARGEST_GPU
        return np.asarray(base + full, dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return smallest_device(idle, task, node)
