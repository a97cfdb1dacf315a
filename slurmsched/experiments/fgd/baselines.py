"""The heuristics that FGD is compared with (Weng et al., ATC 2023, section 6.1), and one that migrates tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import GPU_COUNT_TAGS, FreeDevices, TaskDemand
from slurmsched.policies.place.scores import NodeScoreTable, tightest_device

MAX_NODE_MILLI_CPU = 128_000
MAX_NODE_MILLI_GPU = 8_000
"""The largest node's milli-CPU and milli-GPU, to which scores are relative."""


@dataclass(frozen=True, slots=True)
class BestFit:
    """Scores by the CPUs and GPUs that would stay free, relative to the largest node; the fewer the higher.

    `rounded` truncates scores to whole hundredths, as the authors' scheduler does.
    """

    rounded: bool = False
    name: str = "best_fit"

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        cpu = (free.milli_cpu[nodes] - task.milli_cpu) / MAX_NODE_MILLI_CPU
        gpu = (free.milli_gpus[nodes].sum(axis=1) - task.total_milli_gpu) / MAX_NODE_MILLI_GPU
        score = 100 * (1 - (0.5 * cpu + 0.5 * gpu))
        return np.asarray(np.trunc(score) if self.rounded else score, dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        return tightest_device(free, task, node)


@dataclass(frozen=True, slots=True)
class GpuClustering:
    """Scores 75 if only tasks with as many GPUs run on the node, 50 if such run among others, 25 if none runs, else 0.

    Up to 25 are added the fuller the node is. Tasks without GPUs have no preference.
    """

    name: str = "clustering"

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        if not task.gpus:
            return np.zeros(len(nodes))
        width = 0 if task.shares_gpu else task.gpus
        tag = max(index for index, known in enumerate(GPU_COUNT_TAGS) if known <= width)
        present = free.tag_counts[nodes] > 0
        kinds = present.sum(axis=1)
        base = np.where(present[:, tag], np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
        full = 25 * (MAX_NODE_MILLI_GPU - free.milli_gpus[nodes].sum(axis=1)) // MAX_NODE_MILLI_GPU
        return np.asarray(base + full, dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        return tightest_device(free, task, node)


@dataclass(frozen=True, slots=True)
class DotProduct:
    """Scores by the dot product of free and requested CPUs and GPUs, relative to the largest node; low ones first.

    `rounded` truncates scores to whole hundredths, as the authors' scheduler does.
    """

    rounded: bool = False
    name: str = "dot_product"

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        cpu = (free.milli_cpu[nodes] / MAX_NODE_MILLI_CPU) * (task.milli_cpu / MAX_NODE_MILLI_CPU)
        gpu = (free.milli_gpus[nodes].sum(axis=1) / MAX_NODE_MILLI_GPU) * (task.total_milli_gpu / MAX_NODE_MILLI_GPU)
        score = 100 * (1 - 0.5 * (cpu + gpu))
        return np.asarray(np.trunc(score) if self.rounded else score, dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        return tightest_device(free, task, node)


@dataclass(frozen=True, slots=True)
class GpuPacking:
    """Scores up to 100: 50 or more on shared devices, the fuller the higher; 33 to 50 on idle devices of a used node,
    the fewer the higher; at most 33 on an idle node, the smaller the higher. Tasks without GPUs have no preference."""

    name: str = "gpu_packing"

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        if not task.gpus:
            return np.zeros(len(nodes))
        parts = free.milli_gpus[nodes]
        whole = (parts == MILLI_PER_GPU).sum(axis=1)
        ascending = np.sort(np.where(parts >= task.milli_per_gpu, parts, 2 * MILLI_PER_GPU), axis=1)[:, : task.gpus]
        opened = (ascending == MILLI_PER_GPU).sum(axis=1)
        left = (100 * ascending // MILLI_PER_GPU).sum(axis=1) // 10
        used = np.where(opened > 0, np.maximum(50 - opened, 33), np.maximum(100 - left, 50))
        return np.asarray(np.where(whole == free.gpu_count[nodes], 33 - whole, used), dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        return tightest_device(free, task, node)


@dataclass(frozen=True, slots=True)
class RandomFit:
    """Scores all nodes that fit the same."""

    random: np.random.Generator
    name: str = "random_fit"

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:  # noqa: ARG002 as the protocol has it
        return np.zeros(len(nodes))

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        return int(self.random.choice(np.flatnonzero(free.milli_gpus[node] >= task.milli_per_gpu)))


@dataclass(slots=True)
class RandomNodeScoreTable(NodeScoreTable):
    """Draws one of the nodes with the highest score, instead of the first."""

    random: np.random.Generator = field(kw_only=True)

    def best_node(self, task: TaskDemand, allowed: Mask | None = None) -> int | None:
        row = self.scores_of(task) if allowed is None else np.where(allowed, self.scores_of(task), -np.inf)
        best = np.flatnonzero((row == row.max()) & (row > -np.inf))
        return int(self.random.choice(best)) if len(best) else None


@dataclass(slots=True)
class _RunningTask:
    task: TaskDemand
    node: int
    devices: tuple[int, ...]


@dataclass(slots=True)
class _RunningTasks:
    """The running tasks, and a row for each: node, milli-CPU, memory (MiB), and milli-GPU by device."""

    devices: int
    tasks: list[_RunningTask] = field(default_factory=list)
    _rows: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._rows = np.zeros((1024, 3 + self.devices), dtype=np.int64)

    def add(self, running: _RunningTask) -> None:
        if len(self.tasks) == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self.tasks.append(running)
        self.set(len(self.tasks) - 1, running)

    def set(self, index: int, running: _RunningTask) -> None:
        self.tasks[index] = running
        row = self._rows[index]
        row[:3] = running.node, running.task.milli_cpu, running.task.memory
        row[3:] = 0
        row[[3 + device for device in running.devices]] = running.task.milli_per_gpu

    def blocking(self, free: FreeDevices, task: TaskDemand) -> Ints:
        """Returns the indices of the running tasks whose removal alone would let `task` fit on their node."""
        rows = self._rows[: len(self.tasks)]
        node = rows[:, 0]
        fits = (free.milli_cpu[node] + rows[:, 1] >= task.milli_cpu) & (free.memory[node] + rows[:, 2] >= task.memory)
        fits &= free.accepts(task)[free.type_index[node]]
        candidates = np.flatnonzero(fits)
        gpus = (free.milli_gpus[node[candidates]] + rows[candidates, 3:] >= task.milli_per_gpu).sum(axis=1)
        return np.asarray(candidates[gpus >= task.gpus], dtype=np.int64)


@dataclass(slots=True)
class MigratingScoreTable(NodeScoreTable):
    """Migrates one running task if a new one does not fit, at most `max_moves` times. `moves` counts the migrations.

    No task is migrated for a task without GPUs.
    """

    max_moves: int = 0
    moves: int = 0
    _table: _RunningTasks = field(init=False)

    def __post_init__(self) -> None:
        self._table = _RunningTasks(self.free.milli_gpus.shape[1])

    def place(self, task: TaskDemand, allowed: Mask | None = None) -> tuple[int, tuple[int, ...]] | None:
        """Places the task without a migration if it fits, else on the node of a task that can migrate."""
        placement = NodeScoreTable.place(self, task, allowed)
        if placement is None and allowed is None and task.gpus and self.moves < self.max_moves:
            placement = self._place_by_moving(task)
        if placement is not None:
            self._table.add(_RunningTask(task, *placement))
        return placement

    def _place_by_moving(self, task: TaskDemand) -> tuple[int, tuple[int, ...]] | None:
        row = self._smallest_movable(self._table.blocking(self.free, task), task)
        if row is None:
            return None
        running = self._table.tasks[row]
        self.free.release(running.node, running.task, running.devices)
        devices = self.select_devices(task, running.node)
        self.free.allocate(running.node, task, devices)
        elsewhere = NodeScoreTable.place(self, running.task)
        if elsewhere is None:
            raise PolicyError(f"{running.task} fits on no other node, although another node had a score for it")
        self._table.set(row, _RunningTask(running.task, *elsewhere))
        self.moves += 1
        return running.node, devices

    def _smallest_movable(self, rows: Sequence[int] | Ints, task: TaskDemand) -> int | None:
        """Returns the task with the least milli-GPU, less than `task` asks for, that also fits on another node."""
        smallest = sorted((self._table.tasks[int(row)].task.total_milli_gpu, int(row)) for row in rows)
        for demand, index in smallest:
            running = self._table.tasks[index]
            if demand >= task.total_milli_gpu:
                return None
            scores = self.scores_of(running.task)
            fits = scores > -np.inf
            if fits.sum() - fits[running.node] > 0:
                return index
        return None
