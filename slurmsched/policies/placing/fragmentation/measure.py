"""The fragmentation measure (Weng et al., "Beware of Fragmentation", ATC 2023, section 3.2).

The next task is thought to be drawn from the target workload M. What part of a node's idle GPUs that task could not use
is a fragment; F_n(M) is its expected amount, in milli-GPU, device by device:

    F_n(M) = sum over m in M of p_m * F_n(m),
    F_n(m) = the sum of the devices too small for m, where m fits;  all that is idle, where it does not.

Tasks of M that ask for the same part of as many GPUs of the same types differ in nothing but CPUs. So with V_k, what is
idle on devices large enough for such a class k, and P_k(c), how likely a task of the class is that does with c CPUs,

    F_n(M) = R_n - sum over the classes k that fit of P_k(c_n) * V_k,

R_n being all that is idle. That is what is computed here; `tests` hold it against the text's form.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.task import Task, Workload

__all__ = ["Fragment", "Measure"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_DIGITS = 6
"""Sums of popularities differ in their last bits by the order of adding: milli-GPU are rounded to so many digits."""


class Fragment(IntEnum):
    """What becomes of the idle GPUs of a node for one task of M: all but SATISFIED are fragments (figure 4)."""

    LACK_BOTH = 0
    """Neither CPUs nor GPUs are enough."""
    LACK_GPU = 1
    """CPUs are enough, GPUs are not; also devices too small for a task that fits."""
    SATISFIED = 2
    LACK_CPU = 3
    """GPUs are enough and stranded: CPUs are not."""
    NO_GPU = 4
    """The task needs none and fits."""
    NO_GPU_LACK_CPU = 5
    NO_ACCESS = 6
    """The task runs on other types of GPU."""


class Measure:
    """F over the nodes of an `Idle`, for one target workload."""

    def __init__(self, workload: Workload, idle: Idle) -> None:
        self.workload, self.idle = workload, idle
        asking = [(task, p) for task, p in zip(workload.tasks, workload.popularity, strict=True) if task.gpus]
        classes = sorted({(task.milli, task.gpus, task.types) for task, _ in asking})
        self._milli: Ints = np.array([milli for milli, _, _ in classes], dtype=np.int64)
        self._gpus: Ints = np.array([gpus for _, gpus, _ in classes], dtype=np.int64)
        self._steps: Ints = np.array(sorted({task.cpu for task, _ in asking}), dtype=np.int64)
        likely = np.zeros((len(self._steps) + 1, len(classes)))
        for task, popularity in asking:
            above = np.searchsorted(self._steps, task.cpu, "right")
            likely[above:, classes.index((task.milli, task.gpus, task.types))] += popularity
        accepted = np.array(
            [[not types or kind in types for _, _, types in classes] for kind in idle.types], dtype=np.float64
        ).reshape(len(idle.types), len(classes))
        self._likely: Floats = likely[None] * accepted[:, None]
        """P_k(c) by GPU type, by how many of the steps c reaches, by class."""
        self._total = float(sum(workload.popularity))

    def amount(self, nodes: Ints) -> Floats:
        """F of each of these nodes, in milli-GPU; [nodes]."""
        return self._amount(self.idle.cpu[nodes], self.idle.kind[nodes], self.idle.gpus[nodes])

    def after(self, task: Task, nodes: Ints) -> Floats:
        """F of each of these nodes with the task placed there; [nodes, devices] for a part of a GPU, by the device that
        it is placed on, else [nodes, 1]. Meaningless where it does not fit."""
        cpu, kind, gpus = self.idle.cpu[nodes] - task.cpu, self.idle.kind[nodes], self.idle.gpus[nodes]
        if not task.gpus:
            return self._amount(cpu, kind, gpus)[:, None]
        if not task.partial:
            return self._amount(cpu, kind, self._without(gpus, task))[:, None]
        width = gpus.shape[1]
        each = np.repeat(gpus[:, None, :], width, axis=1)
        each[:, np.arange(width), np.arange(width)] -= task.milli
        found = self._amount(np.repeat(cpu, width), np.repeat(kind, width), each.reshape(-1, width))
        return found.reshape(-1, width)

    @staticmethod
    def _without(gpus: Ints, task: Task) -> Ints:
        """Each node's devices after the first that are large enough for the task were taken."""
        large = gpus >= task.milli
        return np.where(large & (large.cumsum(axis=1) <= task.gpus), gpus - task.milli, gpus)

    def _amount(self, cpu: Ints, kind: Ints, gpus: Ints) -> Floats:
        large = gpus[:, :, None] >= self._milli
        usable = (gpus[:, :, None] * large).sum(axis=1)
        likely = self._likely[kind, np.searchsorted(self._steps, cpu, "right")]
        likely = likely * (large.sum(axis=1) >= self._gpus)
        idle = gpus.sum(axis=1)
        return np.asarray(np.round(self._total * idle - (likely * usable).sum(axis=1), _DIGITS), dtype=np.float64)

    def by_class(self, nodes: Ints) -> Floats:
        """What is idle on each of these nodes, by what becomes of it, in milli-GPU; [nodes, fragments]."""
        idle, found = self.idle, np.zeros((len(nodes), len(Fragment)))
        cpu, gpus, rows = idle.cpu[nodes], idle.gpus[nodes], np.arange(len(nodes))
        whole = gpus.sum(axis=1)
        for task, popularity in zip(self.workload.tasks, self.workload.popularity, strict=True):
            enough = cpu >= task.cpu
            if not task.gpus:
                found[rows, np.where(enough, Fragment.NO_GPU, Fragment.NO_GPU_LACK_CPU)] += popularity * whole
                continue
            large = gpus >= task.milli
            fits = large.sum(axis=1) >= task.gpus
            names = np.where(
                fits,
                np.where(enough, Fragment.SATISFIED, Fragment.LACK_CPU),
                np.where(enough, Fragment.LACK_GPU, Fragment.LACK_BOTH),
            )
            names = np.where(idle.accepts(task)[idle.kind[nodes]], names, Fragment.NO_ACCESS)
            small = np.where(names == Fragment.SATISFIED, (gpus * ~large).sum(axis=1), 0)
            found[rows, names] += popularity * (whole - small)
            found[:, Fragment.LACK_GPU] += popularity * small
        return found
