"""The worth of what is idle on a node, and the score by which a task goes where the least of it is lost.

F of fragmentation gradient descent (Weng et al., ATC 2023, section 3.2) counts the idle GPUs that *one* next task
cannot use. A node with three idle GPUs and the CPUs of one task is no fragment by F, although two of the GPUs will stay
idle. Here idle resources are worth, in GPUs, what the tasks that come can be expected to use of them.

A node is offered tasks one after another, each drawn from the workload, and takes or leaves each: the dynamic and
stochastic knapsack problem (Kleywegt and Papastavrou, "The dynamic and stochastic knapsack problem", 1998). With g GPUs
worth of idle devices, r of a resource (CPUs or memory) and t offers still to come,

    V(t, r, g) = sum over tasks m of p_m * max(V(t - 1, r, g), v_m + V(t - 1, r - r_m, g - v_m)),    V(0, r, g) = 0,

where p_m is the probability of m, r_m what it needs, v_m its GPUs; the second term only counts where m fits. A part of
a GPU is worth its price in the cutting-stock program (`scores.idle_gpu_worth`), and so is what is idle of a device. V
falls the faster the fewer CPUs are left for each idle GPU, so that a task with many CPUs goes where there are many.
There is one V for CPUs and one for memory; the worth of a node is the lesser. Tasks without
GPUs are not offered, since they use none, but what they take of CPUs and memory loses worth as well.

    loss = V(idle before) - V(idle after)

Few offers are for gangs, and V says nothing of how many nodes could still hold one. Littlewood's rule ("Forecasting and
control of passenger bookings", 1972) does: the last of s slots for a gang of k GPUs is worth

    k * P(D >= s),

where D, Poisson, is the number of such gangs that come until all idle GPUs are used. A task that takes a slot loses
that too: hardly anything while there are many, all k GPUs once each slot will be needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.model import MILLI_PER_GPU, ReasonCode
from slurmsched.policies.cluster.resources import FreeResources, Pools
from slurmsched.policies.place.fragmentation import (
    FragmentationMeasure,
    TargetWorkload,
    TaskDemand,
    count_tasks,
    workload_of_counts,
)
from slurmsched.policies.place.placement import CONSOLIDATED, NodeScore, PartDemand, consolidated_equals
from slurmsched.policies.place.scores import (
    FragmentationScore,
    PlacementHeuristic,
    PoolScoreTable,
    SlurmDevice,
    idle_gpu_worth,
)
from slurmsched.policies.stages import Situation

OFFERS: Final = 32
"""Tasks that a node is offered: four for each GPU of a node with eight. With more, nodes wait for better tasks than
will come before the cluster is full; with fewer, they take what strands their GPUs."""

_UNITS: Final = 128
"""Steps of a resource, from none to all of the largest node."""

_GPU_UNITS: Final = 10
"""Steps of a GPU's worth."""

_DESCENT_WEIGHT: Final = 0.001
"""GPUs that a step of the rounded decrease of F, about 40 milli-GPU, counts. It decides between equal losses, and knows
which GPU types are asked for."""

_DIGITS: Final = 6
"""Decimals of a loss, so that equal ones are equal."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of task that a node is offered: the steps that it needs of a resource and of GPUs, its worth in GPUs, and
    its probability."""

    needs: int
    gpu_steps: int
    worth: float
    probability: float


def expected_worth(offers: Iterable[Offer], steps: tuple[int, int], count: int) -> Floats:
    """Return V after `count` offers, in GPUs, by steps of the resource and of GPUs from 0 on; [steps + 1, steps + 1].

    What is left to a probability of 1 is no task. Kinds that need more than there is are never taken.
    """
    resource, gpus = steps
    fitting = [each for each in offers if each.needs <= resource and each.gpu_steps <= gpus]
    worth = np.zeros((resource + 1, gpus + 1))
    for _ in range(count):
        gained = np.zeros_like(worth)
        for each in fitting:
            kept = worth[each.needs :, each.gpu_steps :]
            taken = worth[: resource + 1 - each.needs, : gpus + 1 - each.gpu_steps] + each.worth
            gained[each.needs :, each.gpu_steps :] += each.probability * np.maximum(taken - kept, 0.0)
        worth += gained
    return worth


class IdleWorth:
    """The worth of idle devices beside the CPUs and memory of their node, in GPUs."""

    def __init__(self, tasks: Mapping[TaskDemand, int], pools: Pools, offers: int = OFFERS) -> None:
        """`tasks` are those of the workload, each with how often it occurred. Raises PolicyError if there is none."""
        self.workload: TargetWorkload = workload_of_counts(tasks, coverage=1.0)
        self.of_device: Floats = idle_gpu_worth(self.workload)
        """By idle milli-GPU; [1001]."""
        largest = _GPU_UNITS * max(int(pools.device_count.max(initial=0)), 1)
        asking = {task: count for task, count in tasks.items() if task.gpus}
        self._cpu_unit = max(int(pools.cpus.max(initial=0)), 1) / _UNITS
        self._memory_unit = max(int(pools.memory.max(initial=0)), 1) / _UNITS
        by_cpus = self._offers(asking, {task: round(task.cpus / self._cpu_unit) for task in asking})
        by_memory = self._offers(asking, {task: round(task.memory / self._memory_unit) for task in asking})
        self._by_cpus = expected_worth(by_cpus, (_UNITS, largest), offers)
        self._by_memory = expected_worth(by_memory, (_UNITS, largest), offers)

    def gpus_of(self, task: TaskDemand) -> float:
        """Return the worth of the GPUs that a task takes; a part of a GPU has its price."""
        return float(self.of_device[task.milli_per_gpu]) if task.shares_gpu else float(task.gpus)

    def _offers(self, tasks: Mapping[TaskDemand, int], needs: Mapping[TaskDemand, int]) -> list[Offer]:
        """Return the kinds of tasks; those that differ by less than a step are one."""
        counts, total = defaultdict[tuple[int, float], int](int), sum(tasks.values())
        for task, count in tasks.items():
            counts[needs[task], self.gpus_of(task)] += count
        return [Offer(need, round(worth * _GPU_UNITS), worth, count / total) for (need, worth), count in counts.items()]

    def amount(self, cpus: Ints, memory: Ints, milli: Ints) -> Floats:
        """Return the worth of nodes with so many idle CPUs and MiB; the last axis of `milli` is by device."""
        gpus = self.of_device[milli].sum(axis=-1) * _GPU_UNITS
        by_cpus = _between(self._by_cpus, cpus / self._cpu_unit, gpus)
        return np.minimum(by_cpus, _between(self._by_memory, memory / self._memory_unit, gpus))


def _between(table: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return the table between its points, linearly."""
    width = table.shape[1]
    rows, columns = np.clip(rows, 0, len(table) - 1), np.minimum(columns, width - 1)
    row, column = np.minimum(rows.astype(np.int64), len(table) - 2), np.minimum(columns.astype(np.int64), width - 2)
    down, right, at, flat = rows - row, columns - column, row * width + column, table.ravel()
    upper = flat[at] + right * (flat[at + 1] - flat[at])
    lower = flat[at + width] + right * (flat[at + width + 1] - flat[at + width])
    return np.asarray(upper + down * (lower - upper), dtype=np.float64)


@dataclass(frozen=True)
class LeastLossScore:
    """Scores by the worth that a task leaves, less what it finds: the negative of the loss, in GPUs; see the module."""

    worth: IdleWorth
    measure: FragmentationMeasure
    name: str = "unified"

    def pool_scores(self, free: FreeResources, task: TaskDemand, pools: Ints) -> Floats:  # noqa: ARG002 as every heuristic is called
        return np.asarray(self.device_scores(task, pools).max(axis=1), dtype=np.float64)

    def best_device(self, free: FreeResources, task: TaskDemand, pool: int) -> int:  # noqa: ARG002 as every heuristic is called
        return int(self.device_scores(task, np.array([pool]))[0].argmax())

    def device_scores(self, task: TaskDemand, pools: Ints) -> Floats:
        """Return the scores, by device for a part of a GPU; [pools, devices or 1]."""
        free, node, amount = self.measure.free, self.measure.free.pools.node_of[pools], self.worth.amount
        cpus, memory, milli = free.cpus[node][:, None], free.memory[node][:, None], free.milli[pools]
        fits = milli >= task.milli_per_gpu
        if task.shares_gpu:
            left = np.repeat(milli[:, None, :], milli.shape[1], axis=1)
            index = np.arange(milli.shape[1])
            left[:, index, index] = np.where(fits, milli - task.milli_per_gpu, 0)
        else:
            taken = fits & (fits.cumsum(axis=1) <= task.gpus) if task.gpus else np.zeros_like(fits)
            left = np.where(taken, milli - task.milli_per_gpu, milli)[:, None, :]
        after = amount(cpus - task.cpus, memory - task.memory, left)
        lost = np.round(amount(cpus, memory, milli[:, None, :]) - after, _DIGITS)
        descent = FragmentationScore(self.measure, rounded=True).device_scores(task, pools)
        scores = _DESCENT_WEIGHT * descent - lost
        return np.where(fits, scores, -np.inf) if task.shares_gpu else scores


class GangSlots:
    """The slots that are left for gangs of each width on one node, and what the loss of one costs."""

    def __init__(self, worth: IdleWorth, free: FreeResources) -> None:
        self._free, self._worth, workload = free, worth, worth.workload
        pairs = [*zip(workload.tasks, workload.popularity, strict=True)]
        self._gpus_per_task = sum(p * worth.gpus_of(task) for task, p in pairs)
        widths = sorted({task.gpus for task in workload.tasks if task.gpus > 1})
        self.gangs: tuple[tuple[TaskDemand, float], ...] = tuple(
            (
                TaskDemand(min(task.cpus for task in of_width), 0, width, MILLI_PER_GPU),
                sum(p for task, p in pairs if task.gpus == width),
            )
            for width in widths
            for of_width in [[task for task in workload.tasks if task.gpus == width]]
        )
        """The least demand of each width, and the probability that a task is a gang so wide."""
        self._idle: Ints = np.zeros(len(free.pools), dtype=np.int64)
        self._slots: Ints = np.zeros((len(self.gangs), len(free.pools)), dtype=np.int64)
        self._totals: list[int] = []
        self._seen = len(free.changed_nodes)
        self._count(np.arange(len(free.pools)))

    def losses(self, task: TaskDemand) -> Floats | float:
        """Return what each pool loses of slots for wider gangs by this task, in GPUs, or 0.0 for all; [pools]."""
        self._update()
        free, lost, coming = self._free, 0.0, self._tasks_to_come()
        for index, (gang, probability) in enumerate(self.gangs):
            slots, total = self._slots[index], self._totals[index]
            if gang.gpus <= task.gpus or not total:
                continue
            chance = _chance_of_as_many(total, probability * coming)
            if chance > 10.0**-_DIGITS:
                enough = free.cpus[free.pools.node_of] - task.cpus >= gang.cpus
                after = np.where(enough, (self._idle - self._whole_gpus_taken(task)) // gang.gpus, 0)
                lost = lost + gang.gpus * chance * (slots - np.maximum(after, 0))
        return lost

    def _whole_gpus_taken(self, task: TaskDemand) -> Ints:
        """Return the idle devices that the task takes of each pool; a part of a GPU takes none where it fits beside
        others."""
        if not task.shares_gpu:
            return np.full(len(self._idle), task.gpus)
        milli = self._free.milli
        beside = ((milli >= task.milli_per_gpu) & (milli < MILLI_PER_GPU)).any(axis=1)
        return np.where(beside, 0, 1)

    def _tasks_to_come(self) -> float:
        """Return the tasks that come until all idle GPUs are used."""
        return self._idle_gpus / self._gpus_per_task if self._gpus_per_task else 0.0

    def _update(self) -> None:
        log = self._free.changed_nodes
        if self._seen < len(log):
            self._count(self._free.pools.of_nodes(log[self._seen :]))
            self._seen = len(log)

    def _count(self, pools: Ints) -> None:
        """Count the idle GPUs and slots of these pools again."""
        cpus = self._free.cpus[self._free.pools.node_of[pools]]
        self._idle[pools] = np.count_nonzero(self._free.milli[pools] == MILLI_PER_GPU, axis=1)
        for index, (gang, _) in enumerate(self.gangs):
            self._slots[index, pools] = np.where(cpus >= gang.cpus, self._idle[pools] // gang.gpus, 0)
        self._totals = self._slots.sum(axis=1).tolist()
        self._idle_gpus = float(self._free.milli.sum()) / MILLI_PER_GPU


_CERTAIN: Final = 10.0
"""Standard deviations above its mean that a number never is."""


def _chance_of_as_many(slots: int, mean: float) -> float:
    """Return P(D >= slots) for D of Poisson's distribution with this mean."""
    if slots > mean + _CERTAIN * (mean**0.5 + 1):
        return 0.0
    from scipy.special import pdtrc  # noqa: PLC0415 a round of another policy starts faster without it

    return float(pdtrc(slots - 1, mean))


class LeastLossTable(PoolScoreTable):
    """Chooses the pool with the least loss, that of slots for gangs included."""

    def __init__(self, free: FreeResources, heuristic: PlacementHeuristic, worth: IdleWorth) -> None:
        super().__init__(free, heuristic)
        self._slots = GangSlots(worth, free)

    @classmethod
    def of(cls, worth: IdleWorth, free: FreeResources, slurm_devices: bool = False) -> LeastLossTable:
        """Return the table for this worth, with `slurm_devices` for the devices that Slurm chooses."""
        score = LeastLossScore(worth, FragmentationMeasure(worth.workload, free))
        return cls(free, SlurmDevice(score) if slurm_devices else score, worth)

    def net_scores(self, task: TaskDemand) -> Floats:
        """Return the score of every pool, minus infinity where the task does not fit; [pools]."""
        return self.scores_of(task) - self._slots.losses(task)

    def best_pool(self, task: TaskDemand) -> int | None:
        scores = self.net_scores(task)
        best = int(scores.argmax())
        return None if scores[best] == -np.inf else best

    def state_key(self, pool: int) -> tuple[object, ...]:
        return (*super().state_key(pool), int(self.free.memory[self.free.pools.node_of[pool]]))


class _LeastLoss(NodeScore):
    """The pool whose idle resources lose least by a job on one node; gangs on several nodes are consolidated.

    Unless it `leads`, jobs with whole GPUs are consolidated too, and it decides where that leaves several pools equal.
    """

    name = "least lost worth of what is idle"
    reason = ReasonCode.FEWEST_FRAGMENTS

    def __init__(self, tasks: Counter[TaskDemand], pools: Pools, *, leads: bool) -> None:
        """`tasks` are the workload, of which one needs a GPU."""
        self._tasks, self._pools, self._leads = tasks, pools, leads
        self._tables: WeakKeyDictionary[FreeResources, LeastLossTable] = WeakKeyDictionary()

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        if count > 1:
            return CONSOLIDATED.select(free, demand, candidates, count)
        if not self._leads and demand.milli is None:
            candidates = consolidated_equals(free, candidates)
        if len(candidates) == 1:
            return candidates
        table, scores = self._table(free), np.full(len(candidates), -np.inf)
        milli = np.zeros_like(candidates) if demand.milli is None else demand.milli[candidates]
        needs = np.stack([demand.cpus[candidates], demand.memory[candidates], milli], axis=1)
        if (needs == needs[0]).all():
            kinds, of_kind = needs[:1], np.zeros_like(candidates)
        else:
            kinds, of_kind = np.unique(needs, axis=0, return_inverse=True)
        for index, (cpus, memory, part) in enumerate(kinds.tolist()):
            whole = MILLI_PER_GPU if demand.gpus else 0
            task = TaskDemand(cpus, memory, 1 if part else demand.gpus, part or whole)
            alike = of_kind.reshape(-1) == index
            scores[alike] = table.net_scores(task)[candidates[alike]]
        return candidates[[int(scores.argmax())]]

    def _table(self, free: FreeResources) -> LeastLossTable:
        if free not in self._tables:
            self._tables[free] = LeastLossTable.of(self._worth, free, slurm_devices=True)
        return self._tables[free]

    @cached_property
    def _worth(self) -> IdleWorth:
        """What is idle is worth: computed once a job has a choice of nodes."""
        return IdleWorth(self._tasks, self._pools)


@dataclass(frozen=True, slots=True)
class _OfRecentJobs(NodeScore):
    """The same, for the jobs of the last days and of now as the workload."""

    leads: bool
    name: str = "least lost worth of what is idle"

    def prepared(self, situation: Situation, pools: Pools) -> NodeScore:
        """Return the score of a round; that of consolidation where no job is known to need a GPU."""
        requests = (*situation.recent_requests, *((job.original_request, 1) for job in situation.jobs))
        tasks = count_tasks(requests, pools)
        return _LeastLoss(tasks, pools, leads=self.leads) if any(task.gpus for task in tasks) else CONSOLIDATED

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        return CONSOLIDATED.select(free, demand, candidates, count)


LEAST_LOSS: Final[NodeScore] = _OfRecentJobs(leads=True)
"""Jobs on one node where the least worth is lost, for the devices that Slurm chooses; gangs consolidated."""

UNIFIED_PLACEMENT: Final[NodeScore] = _OfRecentJobs(leads=False)
"""The same for parts of GPUs; whole GPUs are consolidated, and of equal nodes the one that loses least is taken."""
