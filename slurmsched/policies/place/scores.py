"""What a heuristic is, and the table of scores that is kept up to date as nodes change.

Fragmentation gradient descent (Weng et al., ATC 2023, algorithm 1): each task goes where it adds the least to F.

What an idle part of a GPU is worth: prices of a cutting-stock program over the target workload.

The parts that tasks take are pieces, a GPU is the stock that they are cut from. The least number of GPUs that hold all
pieces of the workload is a linear program over the ways to cut one (Gilmore and Gomory, 1961), whose dual gives each
size a price, so that no way to cut is worth more than the whole GPU it takes. What is idle is worth the best set of
pieces that can still be cut from it: with pieces of 810 and 470, 530 left are worth a half, and 190 nothing.

Fragmentation gradient descent with an eye on what a device's rest is good for: better than the paper's.

F counts what is too small for one task of M at a time, so to it 530 left of a GPU are as good beside 470 as 190 are bad
beside 810, whatever else could complete them. Most of what FGD strands at full load are such rests: 276 of 302 GPUs on
openb's default trace. Here a part of a GPU first goes where the worth of the device (`prices`) falls by the least,
which leaves rests that pieces of M fill; the rounded descent decides among equals.

Slurm chooses the device: for shards the first, by index, that has enough of them left, used or not.

Measured on 22.05, 24.11 and 26.05. So a node is as good as that device makes it, whatever the others would.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import FragmentationMeasure, FreeDevices, TargetWorkload, TaskDemand

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class PlacementHeuristic(Protocol):
    """A preference among nodes that all fit, and among the devices of one."""

    @property
    def name(self) -> str: ...

    def node_scores(self, free: FreeDevices, task: TaskDemand, nodes: Ints) -> Floats:
        """How good each of these nodes is, the highest best; meaningless where the task does not fit. [nodes]"""

    def best_device(self, free: FreeDevices, task: TaskDemand, node: int) -> int:
        """The device for a part of a GPU, on a node where it fits."""


def tightest_device(free: FreeDevices, task: TaskDemand, node: int) -> int:
    """The fullest device that still holds the task; the lowest of equals."""
    parts = free.milli_gpus[node]
    return int(np.argmin(np.where(parts >= task.milli_per_gpu, parts, np.iinfo(np.int64).max)))


@dataclass(slots=True)
class _Row:
    scores: Floats
    changes_seen: int
    """How much of the log it knows of."""


@dataclass(slots=True)
class NodeScoreTable:
    """Chooses a node for one task after another. A placement changes one node, so only what has changed since a kind of
    task was last asked about is looked at again, and of nodes in the same state only one."""

    free: FreeDevices
    heuristic: PlacementHeuristic
    _rows: dict[TaskDemand, _Row] = field(default_factory=dict)

    def scores_of(self, task: TaskDemand) -> Floats:
        """The score of every node, minus infinity where the task does not fit; [nodes]."""
        known, log = self._rows.get(task), self.free.changed_nodes
        if known is None:
            known = self._rows[task] = _Row(np.full(len(self.free), -np.inf), 0)
            self._refresh(known, task, np.arange(len(self.free)))
        elif known.changes_seen < len(log):
            self._refresh(known, task, np.unique(log[known.changes_seen :]))
        known.changes_seen = len(log)
        return known.scores

    def best_node(self, task: TaskDemand, allowed: Mask | None = None) -> int | None:
        """The best node, the first of equals, of these or of all; None where the task fits on none of them."""
        row = self.scores_of(task) if allowed is None else np.where(allowed, self.scores_of(task), -np.inf)
        best = int(row.argmax())
        return None if row[best] == -np.inf else best

    def place(self, task: TaskDemand, allowed: Mask | None = None) -> tuple[int, tuple[int, ...]] | None:
        """Put the task on the best node; that node and the devices."""
        node = self.best_node(task, allowed)
        if node is None:
            return None
        devices = self.select_devices(task, node)
        self.free.allocate(node, task, devices)
        return node, devices

    def select_devices(self, task: TaskDemand, node: int) -> tuple[int, ...]:
        """Which ones the task takes on this node."""
        if task.shares_gpu:
            return (self.heuristic.best_device(self.free, task, node),)
        return self.free.lowest_devices(node, task)

    def _refresh(self, row: _Row, task: TaskDemand, nodes: Ints) -> None:
        fits = self.free.fits(task, nodes)
        row.scores[nodes] = -np.inf
        able = nodes[fits]
        if len(able):
            _, first, alike = np.unique(self.free.state_id[able], return_index=True, return_inverse=True)
            row.scores[able] = self.heuristic.node_scores(self.free, task, able[first])[alike]


@dataclass(frozen=True, slots=True)
class FragmentationScore:
    """With `rounded` scores as the authors' scheduler has them: an integer of 0 to 100 of a logistic curve over the
    change in whole GPUs, so that changes about 40 milli-GPU apart are equal. Else the change itself, as in the text."""

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
        """How far F falls, by device for a part of a GPU; [nodes, devices or 1]."""
        descent = self.measure.amount(nodes)[:, None] - self.measure.amount_after(task, nodes)
        if not self.rounded:
            return descent
        return np.asarray(np.trunc(100 / (1 + np.exp(-descent / 1000))), dtype=np.float64)


_STEP = 10
"""Sizes count in so many milli-GPU, rounded up."""
_UNITS = MILLI_PER_GPU // _STEP
_NO_GAIN = 1 + 1e-9
_DIGITS = 9


def idle_gpu_worth(workload: TargetWorkload) -> Floats:
    """The worth, in GPUs, of a device with 0, 1, ... 1000 milli-GPU idle; [1001]. Raises PolicyError where the program
    has no solution."""
    likely = defaultdict[int, float](float)
    for task, popularity in zip(workload.tasks, workload.popularity, strict=True):
        if task.shares_gpu:
            likely[-(-task.milli_per_gpu // _STEP)] += popularity
    sizes = sorted(likely)
    best = _best_cut(sizes, _prices(sizes, [likely[size] for size in sizes]))[0]
    best[_UNITS] = 1.0
    return np.round(best[np.arange(MILLI_PER_GPU + 1) // _STEP], _DIGITS)


def _prices(sizes: list[int], likely: list[float]) -> Floats:
    """Column generation: cut in one way only at first, and add the way worth most until none is worth more than 1."""
    if not sizes:
        return np.zeros(0)
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
    """Unbounded knapsack: the most that so many units can be cut into, and the piece cut last, -1 for none."""
    best, last = np.zeros(_UNITS + 1), [-1] * (_UNITS + 1)
    for units in range(1, _UNITS + 1):
        best[units] = best[units - 1]
        for index, size in enumerate(sizes):
            if size <= units and best[units - size] + prices[index] > best[units] + 1e-12:
                best[units], last[units] = best[units - size] + prices[index], index
    return best, last


def _cutting_pattern(sizes: list[int], last: list[int]) -> Floats:
    way, units = np.zeros(len(sizes)), _UNITS
    while units > 0:
        if last[units] < 0:
            units -= 1
        else:
            way[last[units]] += 1
            units -= sizes[last[units]]
    return way


_WORTH_WEIGHT = 1000.0
"""One GPU's worth outweighs every descent, which is of 0 to 100."""


@dataclass(frozen=True)
class PricedFragmentationScore:
    """Worth first, descent second."""

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
        """Scores by device for a part of a GPU; [nodes, devices or 1]."""
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
    """A heuristic that scores devices, held to the one that Slurm will choose."""

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
