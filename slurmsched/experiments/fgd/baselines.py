"""The heuristics that FGD is compared with (Weng et al., ATC 2023, section 6.1), and one that migrates tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.policies.place.scores import FragmentationScore, PlacementHeuristic, PoolScoreTable

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

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        cpu = (free.cpus[free.pools.node_of[pools]] - task.cpus) / MAX_NODE_MILLI_CPU
        gpu = (free.milli[pools].sum(axis=1) - task.total_milli_gpu) / MAX_NODE_MILLI_GPU
        score = 100 * (1 - (0.5 * cpu + 0.5 * gpu))
        return np.asarray(np.trunc(score) if self.rounded else score, dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        return tightest_device(free, task, pool)


_SCORE_DIGITS: Final = 3
"""Digits of milli-GPU to which a decrease of F is exact; both amounts are rounded to six."""


@dataclass(frozen=True, slots=True)
class ExactDescent(FragmentationScore):
    """The decrease of F as in the paper's text. Of nodes with equal ones the first wins, and no rounding error."""

    name: str = "fgd_argmin"

    def device_scores(self, task: TaskDemand, pools: Ints) -> Floats:
        return np.round(FragmentationScore.device_scores(self, task, pools), _SCORE_DIGITS)


def tightest_device(free: FreeResources, task: TaskDemand, pool: int) -> int:
    """Returns the device with the least idle that still fits the task; the lowest index of equals."""
    parts = free.milli[pool]
    return int(np.argmin(np.where(parts >= task.milli_per_gpu, parts, np.iinfo(np.int64).max)))


GPU_COUNT_TAGS: Final = (0, 1, 2, 4, 8)
"""The classes of GPU clustering: 0 is a part of a GPU, the others are numbers of whole GPUs."""


def _tag(task: TaskDemand) -> int:
    """Returns the index of the task's tag. A number of GPUs between two tags has the lower one."""
    return max(index for index, tag in enumerate(GPU_COUNT_TAGS) if tag <= (0 if task.shares_gpu else task.gpus))


@dataclass(frozen=True, slots=True)
class GpuClustering:
    """Scores 75 if only tasks with as many GPUs run on the node, 50 if such run among others, 25 if none runs, else 0.

    Up to 25 are added the fuller the node is. Tasks without GPUs have no preference. `tag_counts` are the tasks of each
    of `GPU_COUNT_TAGS` on each node; [nodes, tags].
    """

    tag_counts: Ints
    name: str = "clustering"

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        if not task.gpus:
            return np.zeros(len(pools))
        tag, present = _tag(task), self.tag_counts[pools] > 0
        kinds = present.sum(axis=1)
        base = np.where(present[:, tag], np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
        full = 25 * (MAX_NODE_MILLI_GPU - free.milli[pools].sum(axis=1)) // MAX_NODE_MILLI_GPU
        return np.asarray(base + full, dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        return tightest_device(free, task, pool)


@dataclass(frozen=True, slots=True)
class DotProduct:
    """Scores by the dot product of free and requested CPUs and GPUs, relative to the largest node; low ones first.

    `rounded` truncates scores to whole hundredths, as the authors' scheduler does.
    """

    rounded: bool = False
    name: str = "dot_product"

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        cpu = (free.cpus[free.pools.node_of[pools]] / MAX_NODE_MILLI_CPU) * (task.cpus / MAX_NODE_MILLI_CPU)
        gpu = (free.milli[pools].sum(axis=1) / MAX_NODE_MILLI_GPU) * (task.total_milli_gpu / MAX_NODE_MILLI_GPU)
        score = 100 * (1 - 0.5 * (cpu + gpu))
        return np.asarray(np.trunc(score) if self.rounded else score, dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        return tightest_device(free, task, pool)


@dataclass(frozen=True, slots=True)
class GpuPacking:
    """Scores up to 100: 50 or more on shared devices, the fuller the higher; 33 to 50 on idle devices of a used node,
    the fewer the higher; at most 33 on an idle node, the smaller the higher. Tasks without GPUs have no preference."""

    name: str = "gpu_packing"

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        if not task.gpus:
            return np.zeros(len(pools))
        parts = free.milli[pools]
        whole = (parts == MILLI_PER_GPU).sum(axis=1)
        ascending = np.sort(np.where(parts >= task.milli_per_gpu, parts, 2 * MILLI_PER_GPU), axis=1)[:, : task.gpus]
        opened = (ascending == MILLI_PER_GPU).sum(axis=1)
        left = (100 * ascending // MILLI_PER_GPU).sum(axis=1) // 10
        used = np.where(opened > 0, np.maximum(50 - opened, 33), np.maximum(100 - left, 50))
        return np.asarray(np.where(whole == free.pools.device_count[pools], 33 - whole, used), dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        return tightest_device(free, task, pool)


@dataclass(frozen=True, slots=True)
class RandomFit:
    """Scores all nodes that fit the same."""

    random: np.random.Generator
    name: str = "random_fit"

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:  # noqa: ARG002 as the protocol has it
        return np.zeros(len(pools))

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        return int(self.random.choice(np.flatnonzero(free.milli[pool] >= task.milli_per_gpu)))


class ClusteringScoreTable(PoolScoreTable):
    """Counts the tasks of each tag on each node, for `GpuClustering`."""

    def __init__(self, free: FreeResources) -> None:
        self._tag_counts: Ints = np.zeros((len(free.pools), len(GPU_COUNT_TAGS)), dtype=np.int64)
        super().__init__(free, GpuClustering(self._tag_counts))

    def place(self, task: TaskDemand) -> Allocation | None:
        allocation = super().place(task)
        if allocation is not None and task.gpus:
            self._tag_counts[allocation.pools[0], _tag(task)] += 1
        return allocation

    def state_key(self, pool: int) -> tuple[object, ...]:
        return (*super().state_key(pool), (self._tag_counts[pool] > 0).tobytes())


class RandomPoolScoreTable(PoolScoreTable):
    """Draws one of the nodes with the highest score, instead of the first."""

    def __init__(self, free: FreeResources, random: np.random.Generator) -> None:
        super().__init__(free, RandomFit(random))
        self._random = random

    def best_pool(self, task: TaskDemand) -> int | None:
        row = self.scores_of(task)
        best = np.flatnonzero((row == row.max()) & (row > -np.inf))
        return int(self._random.choice(best)) if len(best) else None


@dataclass(slots=True)
class _RunningTask:
    task: TaskDemand
    allocation: Allocation


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
        row[:3] = running.allocation.pools[0], running.task.cpus, running.task.memory
        row[3:] = 0
        row[[3 + device for device in running.allocation.devices[0]]] = running.task.milli_per_gpu

    def blocking(self, free: FreeResources, task: TaskDemand) -> Ints:
        """Returns the indices of the running tasks whose removal alone would let `task` fit on their node."""
        rows = self._rows[: len(self.tasks)]
        node = rows[:, 0]
        fits = (free.cpus[node] + rows[:, 1] >= task.cpus) & (free.memory[node] + rows[:, 2] >= task.memory)
        if task.gpu_types:
            fits &= np.isin(np.array(free.pools.gpu_types), task.gpu_types)[node]
        candidates = np.flatnonzero(fits)
        gpus = (free.milli[node[candidates]] + rows[candidates, 3:] >= task.milli_per_gpu).sum(axis=1)
        return np.asarray(candidates[gpus >= task.gpus], dtype=np.int64)


class MigratingScoreTable(PoolScoreTable):
    """Migrates one running task if a new one does not fit, at most `max_moves` times. `moves` counts the migrations.

    No task is migrated for a task without GPUs.
    """

    def __init__(self, free: FreeResources, heuristic: PlacementHeuristic, max_moves: int) -> None:
        super().__init__(free, heuristic)
        self.moves, self._max_moves = 0, max_moves
        self._running = _RunningTasks(free.milli.shape[1])

    def place(self, task: TaskDemand) -> Allocation | None:
        """Places the task without a migration if it fits, else on the node of a task that can migrate."""
        allocation = super().place(task)
        if allocation is None and task.gpus and self.moves < self._max_moves:
            allocation = self._place_by_moving(task)
        if allocation is not None:
            self._running.add(_RunningTask(task, allocation))
        return allocation

    def _place_by_moving(self, task: TaskDemand) -> Allocation | None:
        row = self._smallest_movable(self._running.blocking(self.free, task), task)
        if row is None:
            return None
        running = self._running.tasks[row]
        pool = running.allocation.pools[0]
        self.free.release(running.allocation)
        allocation = task.allocation(pool, self.select_devices(task, pool))
        self.free.allocate(allocation)
        elsewhere = super().place(running.task)
        if elsewhere is None:
            raise PolicyError(f"{running.task} fits on no other node, although another node had a score for it")
        self._running.set(row, _RunningTask(running.task, elsewhere))
        self.moves += 1
        return allocation

    def _smallest_movable(self, rows: Sequence[int] | Ints, task: TaskDemand) -> int | None:
        """Returns the task with the least milli-GPU, less than `task` asks for, that also fits on another node."""
        smallest = sorted((self._running.tasks[int(row)].task.total_milli_gpu, int(row)) for row in rows)
        for demand, index in smallest:
            running = self._running.tasks[index]
            if demand >= task.total_milli_gpu:
                return None
            fits = self.scores_of(running.task) > -np.inf
            if fits.sum() - fits[running.allocation.pools[0]] > 0:
                return index
        return None
