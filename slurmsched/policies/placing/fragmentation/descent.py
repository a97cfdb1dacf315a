"""Fragmentation gradient descent (Weng et al., ATC 2023, algorithm 1): each task goes where it adds the least to F."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.measure import Measure
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["Descent"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Descent:
    """With `rounded` scores as the authors' scheduler has them: an integer of 0 to 100 of a logistic curve over the
    change in whole GPUs, so that changes about 40 milli-GPU apart are equal. Else the change itself, as in the text."""

    measure: Measure
    rounded: bool = False
    name: str = "fgd"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        each = self.by_device(task, nodes)
        if task.partial:
            each = np.where(idle.gpus[nodes] >= task.milli, each, -np.inf)
        return np.asarray(each.max(axis=1), dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:
        each = self.by_device(task, np.array([node]))[0]
        return int(np.argmax(np.where(idle.gpus[node] >= task.milli, each, -np.inf)))

    def by_device(self, task: Task, nodes: Ints) -> Floats:
        """How far F falls, by device for a part of a GPU; [nodes, devices or 1]."""
        descent = self.measure.amount(nodes)[:, None] - self.measure.after(task, nodes)
        if not self.rounded:
            return descent
        return np.asarray(np.trunc(100 / (1 + np.exp(-descent / 1000))), dtype=np.float64)
