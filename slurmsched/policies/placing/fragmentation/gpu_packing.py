"""GPU packing (section 6.1, after Weng et al., "MLaaS in the wild", NSDI 2022): shared GPUs first, then whole GPUs of
nodes in use, and untouched nodes last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import MILLI
from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.scoring import smallest_device
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["GpuPacking"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GpuPacking:
    """Of 100: above 50 on devices that are shared, the fuller the higher; 33 to 50 on idle devices of a node in use,
    the fewer the higher; 33 or less on an untouched node, the smaller the higher. Tasks without GPUs do not care."""

    name: str = "gpu_packing"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        if not task.gpus:
            return np.zeros(len(nodes))
        parts = idle.gpus[nodes]
        whole = (parts == MILLI).sum(axis=1)
        ascending = np.sort(np.where(parts >= task.milli, parts, 2 * MILLI), axis=1)[:, : task.gpus]
        opened = (ascending == MILLI).sum(axis=1)
        left = (100 * ascending // MILLI).sum(axis=1) // 10
        used = np.where(opened > 0, np.maximum(50 - opened, 33), np.maximum(100 - left, 50))
        return np.asarray(np.where(whole == idle.count[nodes], 33 - whole, used), dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return smallest_device(idle, task, node)
