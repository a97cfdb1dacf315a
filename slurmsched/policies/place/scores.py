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
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import FragmentationMeasure, FreeDevices, TargetWorkload, TaskDemand


class PlacementHeuristic(Protocol):
    """A preference among nodes that fit, and among the devices of a node."""

    @property
    def name(self) -> str: ...

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        """Return the scores of these nodes, the highest is best; undefined where the task does not fit; [nodes]."""

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        """Return the device for a part of a GPU, on a node where it fits."""


def tightest_device(free: FreeDevices, task: TaskDemand, node: int) -> int:
    """Return the device with the least idle that still fits the task; the lowest index of equals."""
    parts = free.milli_gpus[node]
    return int(np.argmin(np.where(parts >= task.milli_per_gpu, parts, np.iinfo(np.int64).max)))


@dataclass(slots=True)
class _Row:
    scores: Floats
    changes_seen: int
    """Number of entries of `FreeDevices.changed_nodes` that the scores reflect."""


@dataclass(slots=True)
class NodeScoreTable:
    """Chooses a node for one task after another. It scores again only the nodes that changed since the last task of the
    same demand, and of nodes in the same state only one."""

    free: FreeDevices
    heuristic: PlacementHeuristic
    _rows: dict[TaskDemand, _Row] = field(default_factory=dict)

    def scores_of(self, task: TaskDemand) -> Floats:
        """Return the score of every node, minus infinity where the task does not fit; [nodes]."""
        row, log = self._rows.get(task), self.free.changed_nodes
        if row is None:
            row = self._rows[task] = _Row(np.full(len(self.free), -np.inf), 0)
            self._refresh(row, task, np.arange(len(self.free)))
        elif row.changes_seen < len(log):
            self._refresh(row, task, np.unique(log[row.changes_seen :]))
        row.changes_seen = len(log)
        return row.scores

    def best_node(self, task: TaskDemand, allowed: Mask | None = None) -> int | None:
        """Return the best of the allowed nodes, or of all; the first of equals. None where the task fits on none."""
        scores = self.scores_of(task) if allowed is None else np.where(allowed, self.scores_of(task), -np.inf)
        best = int(scores.argmax())
        return None if scores[best] == -np.inf else best

    def place(self, task: TaskDemand, allowed: Mask | None = None) -> tuple[int, tuple[int, ...]] | None:
        """Allocate the task on the best node and return the node and its devices; None where it fits on none."""
        node = self.best_node(task, allowed)
        if node is None:
            return None
        devices = self.select_devices(task, node)
        self.free.allocate(node, task, devices)
        return node, devices

    def select_devices(self, task: TaskDemand, node: int) -> tuple[int, ...]:
        """Return the devices that the task takes on this node."""
        if task.shares_gpu:
            return (self.heuristic.best_device(self.free, task, node),)
        return self.free.lowest_devices(node, task)

    def _refresh(self, row: _Row, task: TaskDemand, nodes: Ints) -> None:
        fits = self.free.fits(task, nodes)
        row.scores[nodes] = -np.inf
        fitting = nodes[fits]
        if len(fitting):
            _, first, state = np.unique(self.free.state_id[fitting], return_index=True, return_inverse=True)
            row.scores[fitting] = self.heuristic.node_scores(self.free, task, fitting[first])[state]


@dataclass(frozen=True, slots=True)
class FragmentationScore:
    """The decrease of F, in milli-GPU, as in the paper (algorithm 1).

    If `rounded`, it is scored as in the authors' scheduler: an integer of 0 to 100, from a logistic curve over the
    decrease in whole GPUs, so that decreases within about 40 milli-GPU are equal.
    """

    measure: FragmentationMeasure
    rounded: bool = False
    name: str = "fgd"

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        each = self.device_scores(task, nodes)
        if task.shares_gpu:
            each = np.where(free.milli_gpus[nodes] >= task.milli_per_gpu, each, -np.inf)
        return np.asarray(each.max(axis=1), dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        each = self.device_scores(task, np.array([node]))[0]
        return int(np.argmax(np.where(free.milli_gpus[node] >= task.milli_per_gpu, each, -np.inf)))

    def device_scores(self, task: TaskDemand, nodes: Ints) -> Floats:
        """Return the decrease of F, by device for a part of a GPU; [nodes, devices or 1]."""
        descent = self.measure.amount(nodes)[:, None] - self.measure.amount_after(task, nodes)
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
    name: str = "fgd_priced"
    _worth: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_worth", idle_gpu_worth(self.measure.workload))

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:  # noqa: ARG002 as every heuristic is called
        return np.asarray(self.device_scores(task, nodes).max(axis=1), dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:  # noqa: ARG002 as every heuristic is called
        return int(self.device_scores(task, np.array([node]))[0].argmax())

    def device_scores(self, task: TaskDemand, nodes: Ints) -> Floats:
        """Return the scores, by device for a part of a GPU; [nodes, devices or 1]."""
        descent = FragmentationScore(self.measure, rounded=True).device_scores(task, nodes)
        if not task.shares_gpu:
            return descent
        parts = self.measure.free.milli_gpus[nodes]
        fits = parts >= task.milli_per_gpu
        lost = self._worth[parts] - self._worth[np.where(fits, parts - task.milli_per_gpu, 0)]
        return np.where(fits, descent - _WORTH_WEIGHT * lost, -np.inf)


class _DeviceHeuristic(Protocol):
    @property
    def name(self) -> str: ...

    def device_scores(self, task: TaskDemand, nodes: Ints) -> Floats: ...


@dataclass(frozen=True, slots=True)
class SlurmDevice:
    """A heuristic that scores each node by the device that Slurm will choose there."""

    heuristic: _DeviceHeuristic

    @property
    def name(self) -> str:
        return self.heuristic.name

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        each = self.heuristic.device_scores(task, nodes)
        if not task.shares_gpu:
            return np.asarray(each[:, 0], dtype=np.float64)
        first = (free.milli_gpus[nodes] >= task.milli_per_gpu).argmax(axis=1)
        return np.asarray(each[np.arange(len(nodes)), first], dtype=np.float64)

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        return free.lowest_devices(node, task)[0]
