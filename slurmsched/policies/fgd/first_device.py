"""Slurm chooses the device: for shards the first, by index, that has enough of them left, used or not.

Measured on 22.05, 24.11 and 26.05. So a node is as good as that device makes it, whatever the others would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation import Idle, Task

__all__ = ["FirstDevice"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _ByDevice(Protocol):
    @property
    def name(self) -> str: ...

    def by_device(self, task: Task, nodes: Ints) -> Floats: ...


@dataclass(frozen=True, slots=True)
class FirstDevice:
    """A heuristic that scores devices, held to the one that Slurm will choose."""

    heuristic: _ByDevice

    @property
    def name(self) -> str:
        return self.heuristic.name

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        each = self.heuristic.by_device(task, nodes)
        if not task.partial:
            return np.asarray(each[:, 0], dtype=np.float64)
        first = (idle.gpus[nodes] >= task.milli).argmax(axis=1)
        return np.asarray(each[np.arange(len(nodes)), first], dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return idle.lowest(node, task)[0]
