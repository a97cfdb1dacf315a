"""Node scores that keep fragmentation low, and the table that keeps them up to date as nodes change.

- `FragmentationScore` is fragmentation gradient descent (Weng et al., "Beware of Fragmentation", ATC 2023,
  algorithm 1): a task goes where it increases F the least.
- `PricedFragmentationScore` is ours: it strands less than FGD. F counts what is too small for one task of M at a time
  and ignores which other tasks could fill the rest of a device. Most of what FGD strands at full load are such rests:
  276 of 302 GPUs on openb's default trace. Here a part of a GPU goes where the worth of the device falls the least
  (`idle_gpu_worth`); among equals the rounded descent decides.
- `SlurmDevice` scores a node by the device that Slurm will choose: for shards the first, by index, that has enough of
  them left, used or not (measured on Slurm 22.05, 24.11 and 26.05).

The worth of an idle part of a GPU is a price of the cutting-stock program (Gilmore and Gomory, 1961) over the target
workload. Tasks' parts of a GPU are the pieces, a GPU is the stock. The least number of GPUs that hold all pieces is a
linear program over the patterns to cut one GPU; its dual gives each piece a price, such that no pattern is worth more
than a GPU. An idle part is worth the best set of pieces that can be cut from it: with pieces of 810 and 470 milli-GPU,
530 are worth half a GPU and 190 nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.model import MILLI_PER_GPU, ReasonCode
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import (
    FragmentationMeasure,
    TargetWorkload,
    TaskDemand,
    target_workload,
)
from slurmsched.policies.place.placement import NodeScore, PartDemand
from slurmsched.policies.stages import Situation


class PlacementHeuristic(Protocol):
    """A preference among pools that fit, and among the devices of a pool."""

    @property
    def name(self) -> str: ...

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        """Return the scores of these pools, the highest is best; undefined where the task does not fit; [pools]."""

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        """Return the device for a part of a GPU, in a pool where it fits."""


@dataclass(slots=True)
class _Row:
    scores: Floats
    changes_seen: int
    """Number of entries of `FreeResources.changed_nodes` that the scores reflect."""


class PoolScoreTable:
    """Scores pools for one task after another. It scores again only the pools that changed since the last task of the
    same demand, and of pools in the same state only one."""

    def __init__(self, free: FreeResources, heuristic: PlacementHeuristic) -> None:
        self.free, self.heuristic = free, heuristic
        self._rows: dict[TaskDemand, _Row] = {}
        self._state_ids: dict[tuple[object, ...], int] = {}
        self._changes_seen = len(free.changed_nodes)
        self._state_id: Ints = np.array([self._state(pool) for pool in range(len(free.pools))], dtype=np.int64)
        """Equal for pools that every heuristic scores alike."""

    def scores_of(self, task: TaskDemand) -> Floats:
        """Return the score of every pool, minus infinity where the task does not fit; [pools]."""
        row, log = self._rows.get(task), self.free.changed_nodes
        if self._changes_seen < len(log):
            for pool in self.free.pools.of_nodes(log[self._changes_seen :]):
                self._state_id[pool] = self._state(int(pool))
            self._changes_seen = len(log)
        if row is None:
            row = self._rows[task] = _Row(np.full(len(self.free.pools), -np.inf), 0)
            self._refresh(row, task, np.arange(len(self.free.pools)))
        elif row.changes_seen < len(log):
            self._refresh(row, task, self.free.pools.of_nodes(log[row.changes_seen :]))
        row.changes_seen = len(log)
        return row.scores

    def best_pool(self, task: TaskDemand) -> int | None:
        """Return the best pool, the first of equals. None where the task fits on none."""
        scores = self.scores_of(task)
        best = int(scores.argmax())
        return None if scores[best] == -np.inf else best

    def place(self, task: TaskDemand) -> Allocation | None:
        """Allocate the task in the best pool and return the allocation; None where it fits in none."""
        pool = self.best_pool(task)
        if pool is None:
            return None
        allocation = task.allocation(pool, self.select_devices(task, pool))
        self.free.allocate(allocation)
        return allocation

    def select_devices(self, task: TaskDemand, pool: int) -> tuple[int, ...]:
        """Return the devices that the task takes in this pool."""
        if task.shares_gpu:
            return (self.heuristic.best_device(self.free, task, pool),)
        return tuple(np.flatnonzero(self.free.milli[pool] >= task.milli_per_gpu)[: task.gpus].tolist())

    def _state(self, pool: int) -> int:
        return self._state_ids.setdefault(self.state_key(pool), len(self._state_ids))

    def state_key(self, pool: int) -> tuple[object, ...]:
        """Return what the score of a pool depends on."""
        free = self.free
        cpus = int(free.cpus[free.pools.node_of[pool]])
        return free.pools.gpu_types[pool], len(free.pools.devices[pool]), cpus, free.milli[pool].tobytes()

    def _refresh(self, row: _Row, task: TaskDemand, pools: Ints) -> None:
        fitting = pools[fits_in_pools(self.free, task, pools)]
        row.scores[pools] = -np.inf
        if len(fitting):
            _, first, state = np.unique(self._state_id[fitting], return_index=True, return_inverse=True)
            row.scores[fitting] = self.heuristic.pool_scores(self.free, task, fitting[first])[state]


def fits_in_pools(free: FreeResources, task: TaskDemand, pools: Ints) -> Mask:
    """Return whether the task fits in each of these pools now; [pools]."""
    node = free.pools.node_of[pools]
    fits: Mask = (free.cpus[node] >= task.cpus) & (free.memory[node] >= task.memory)
    if task.gpus:
        fits &= (free.milli[pools] >= task.milli_per_gpu).sum(axis=1) >= task.gpus
    if task.gpus and task.gpu_types:
        fits &= np.isin(np.array(free.pools.gpu_types)[pools], task.gpu_types)
    return fits


@dataclass(frozen=True, slots=True)
class FragmentationScore:
    """The decrease of F, in milli-GPU, as in the paper (algorithm 1).

    If `rounded`, it is scored as in the authors' scheduler: an integer of 0 to 100, from a logistic curve over the
    decrease in whole GPUs, so that decreases within about 40 milli-GPU are equal.
    """

    measure: FragmentationMeasure
    rounded: bool = False
    name: str = "fgd"

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        each = self.device_scores(task, pools)
        if task.shares_gpu:
            each = np.where(free.milli[pools] >= task.milli_per_gpu, each, -np.inf)
        return np.asarray(each.max(axis=1), dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        each = self.device_scores(task, np.array([pool]))[0]
        return int(np.argmax(np.where(free.milli[pool] >= task.milli_per_gpu, each, -np.inf)))

    def device_scores(self, task: TaskDemand, pools: Ints) -> Floats:
        """Return the decrease of F, by device for a part of a GPU; [pools, devices or 1]."""
        descent = self.measure.amount(pools)[:, None] - self.measure.amount_after(task, pools)
        if not self.rounded:
            return descent
        return np.asarray(np.trunc(100 / (1 + np.exp(-descent / 1000))), dtype=np.float64)


_STEP = 10
"""Unit of sizes in the cutting-stock program, in milli-GPU; sizes are rounded up."""
_UNITS = MILLI_PER_GPU // _STEP
_NO_GAIN = 1 + 1e-9
_DIGITS = 9


def idle_gpu_worth(workload: TargetWorkload) -> Floats:
    """Return the worth, in GPUs, of a device with 0, 1, ... 1000 milli-GPU idle; [1001].

    Raises PolicyError if the linear program has no solution.
    """
    likely = defaultdict[int, float](float)
    for task, popularity in zip(workload.tasks, workload.popularity, strict=True):
        if task.shares_gpu:
            likely[-(-task.milli_per_gpu // _STEP)] += popularity
    sizes = sorted(likely)
    best = _best_cut(sizes, _prices(sizes, [likely[size] for size in sizes]))[0]
    best[_UNITS] = 1.0
    return np.round(best[np.arange(MILLI_PER_GPU + 1) // _STEP], _DIGITS)


def _prices(sizes: list[int], likely: list[float]) -> Floats:
    """Return the price of each size, by column generation: add the best pattern until none is worth more than 1 GPU."""
    if not sizes:
        return np.zeros(0)
    from scipy.optimize import linprog  # noqa: PLC0415 a round without shards starts twice as fast without it

    patterns = [np.eye(len(sizes))[index] * (_UNITS // size) for index, size in enumerate(sizes)]
    while True:
        cut = linprog(np.ones(len(patterns)), A_ub=-np.array(patterns).T, b_ub=-np.array(likely), method="highs")
        if cut.x is None:
            raise PolicyError(f"no prices for parts of a GPU: {cut.message}")
        prices = np.maximum(0.0, -np.asarray(cut.ineqlin.marginals, dtype=np.float64))
        best, last = _best_cut(sizes, prices)
        if best[_UNITS] <= _NO_GAIN:
            return prices
        patterns.append(_cutting_pattern(sizes, last))


def _best_cut(sizes: list[int], prices: Floats) -> tuple[Floats, list[int]]:
    """Unbounded knapsack: return by units the best worth and the index of the last piece cut, -1 for none."""
    best, last = np.zeros(_UNITS + 1), [-1] * (_UNITS + 1)
    for units in range(1, _UNITS + 1):
        best[units] = best[units - 1]
        for index, size in enumerate(sizes):
            if size <= units and best[units - size] + prices[index] > best[units] + 1e-12:
                best[units], last[units] = best[units - size] + prices[index], index
    return best, last


def _cutting_pattern(sizes: list[int], last: list[int]) -> Floats:
    pattern, units = np.zeros(len(sizes)), _UNITS
    while units > 0:
        if last[units] < 0:
            units -= 1
        else:
            pattern[last[units]] += 1
            units -= sizes[last[units]]
    return pattern


_WORTH_WEIGHT = 1000.0
"""Weight of the worth of one GPU against the rounded descent, which is 0 to 100."""


@dataclass(frozen=True)
class PricedFragmentationScore:
    """Scores by the lost worth of the device first, by the rounded descent second."""

    measure: FragmentationMeasure
    worth: Floats
    """That of `idle_gpu_worth` for the measure's workload; [1001]."""
    name: str = "fgd_priced"

    @classmethod
    def of(cls, measure: FragmentationMeasure) -> PricedFragmentationScore:
        """Raises PolicyError if the workload has no prices."""
        return cls(measure, idle_gpu_worth(measure.workload))

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:  # noqa: ARG002 as every heuristic is called
        return np.asarray(self.device_scores(task, pools).max(axis=1), dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:  # noqa: ARG002 as every heuristic is called
        return int(self.device_scores(task, np.array([pool]))[0].argmax())

    def device_scores(self, task: TaskDemand, pools: Ints) -> Floats:
        """Return the scores, by device for a part of a GPU; [pools, devices or 1]."""
        descent = FragmentationScore(self.measure, rounded=True).device_scores(task, pools)
        if not task.shares_gpu:
            return descent
        parts = self.measure.free.milli[pools]
        fits = parts >= task.milli_per_gpu
        lost = self.worth[parts] - self.worth[np.where(fits, parts - task.milli_per_gpu, 0)]
        return np.where(fits, descent - _WORTH_WEIGHT * lost, -np.inf)


class _DeviceHeuristic(Protocol):
    @property
    def name(self) -> str: ...

    def device_scores(self, task: TaskDemand, pools: Ints) -> Floats: ...


@dataclass(frozen=True, slots=True)
class SlurmDevice:
    """A heuristic that scores each pool by the device that Slurm will choose there."""

    heuristic: _DeviceHeuristic

    @property
    def name(self) -> str:
        return self.heuristic.name

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:
        each = self.heuristic.device_scores(task, pools)
        if not task.shares_gpu:
            return np.asarray(each[:, 0], dtype=np.float64)
        first = (free.milli[pools] >= task.milli_per_gpu).argmax(axis=1)
        return np.asarray(each[np.arange(len(pools)), first], dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:
        return int((free.milli[pool] >= task.milli_per_gpu).argmax())


class _LeastFragments(NodeScore):
    """The pool whose idle GPUs lose least by the gang's part on it; of equals the one that had the least idle."""

    name = "fewest fragments"
    reason = ReasonCode.FEWEST_FRAGMENTS

    def __init__(self, workload: TargetWorkload, idle_milli: Ints) -> None:
        """`idle_milli` is by pool, at the start of the round. Raises PolicyError if the workload has no prices."""
        self._workload, self._idle_milli, self._worth = workload, idle_milli, idle_gpu_worth(workload)
        self._tables: WeakKeyDictionary[FreeResources, PoolScoreTable] = WeakKeyDictionary()

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        cpus, table = demand.cpus[candidates], self._table(free)
        milli = np.zeros_like(candidates) if demand.milli is None else demand.milli[candidates]
        scores = np.zeros(len(candidates))
        for each, part in {*zip(cpus.tolist(), milli.tolist(), strict=True)}:
            task = TaskDemand(each, 0, 1 if part else demand.gpus, part or (MILLI_PER_GPU if demand.gpus else 0))
            of_task = (cpus == each) & (milli == part)
            scores[of_task] = table.scores_of(task)[candidates[of_task]] - _WORTH_WEIGHT * (part == MILLI_PER_GPU)
        return candidates[np.lexsort((self._idle_milli[candidates], -scores))[:count]]

    def _table(self, free: FreeResources) -> PoolScoreTable:
        if free not in self._tables:
            measure = FragmentationMeasure(self._workload, free)
            self._tables[free] = PoolScoreTable(free, SlurmDevice(PricedFragmentationScore(measure, self._worth)))
        return self._tables[free]


class _OfRecentJobs(NodeScore):
    """The same, for the jobs of the last days and of now as the target workload."""

    name = "fewest fragments"

    def prepared(self, situation: Situation, pools: Pools) -> NodeScore:
        """Return the score of a round. Raises PolicyError if its jobs have no prices."""
        requests = (*situation.recent_requests, *((job.original_request, 1) for job in situation.jobs))
        idle = [sum(MILLI_PER_GPU - gpu.used for gpu in gpus) for gpus in pools.devices]
        return _LeastFragments(target_workload(requests, pools), np.array(idle, dtype=np.int64))

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        idle = free.milli.sum(axis=1)
        return _LeastFragments(target_workload((), free.pools), idle).select(free, demand, candidates, count)


LEAST_FRAGMENTS: Final[NodeScore] = _OfRecentJobs()
"""Fragmentation gradient descent with prices, for the devices that Slurm chooses."""
