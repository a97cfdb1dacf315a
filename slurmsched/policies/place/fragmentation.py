"""Task demands, the target workload, and the fragmentation measure.

Source: Weng et al., "Beware of Fragmentation", ATC 2023, section 3.2.

The next task is assumed to be drawn from the target workload M. The part of a node's idle GPUs that the task cannot use
is a fragment, and F_n(M) is its expected amount in milli-GPU, summed over devices:

    F_n(M) = sum over m in M of p_m * F_n(m),
    F_n(m) = the idle amount of the devices too small for m, if m fits on the node; all idle amounts, if it does not.

Tasks of M with the same number of GPUs, part of each and GPU types form a class: they differ only in CPUs. Let V_k be
the idle amount on devices large enough for class k, P_k(c) the probability of a task of class k that needs at most c
CPUs, c_n the idle CPUs of the node and R_n all idle amounts on it. Then

    F_n(M) = R_n - sum over the classes k that fit of P_k(c_n) * V_k.

This form is computed here; the tests compare it with the paper's form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.model import MILLI_PER_GPU, Request
from slurmsched.policies.cluster.gang import gang_of
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.errors import PolicyError

COVERAGE: Final = 0.95
"""The fraction of all tasks that the typical tasks cover."""


@dataclass(frozen=True)
class TaskDemand:
    """What a task takes on one node: CPUs, MiB, GPUs, and `milli_per_gpu` of each of these GPUs.

    `gpu_types` are the types it runs on, empty for any. In traces that count milli-CPUs these are the CPUs of tasks and
    nodes alike. Raises PolicyError for amounts that no task can have.
    """

    cpus: int
    memory: int
    gpus: int
    milli_per_gpu: int
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        part = 0 < self.milli_per_gpu <= MILLI_PER_GPU if self.gpus else self.milli_per_gpu == 0
        if not part or min(self.cpus, self.memory, self.gpus) < 0:
            raise PolicyError(
                f"{self} is no task: it needs 1 to {MILLI_PER_GPU} milli-GPU per GPU, and no amount below 0"
            )

    @cached_property
    def shares_gpu(self) -> bool:
        """Whether it takes a part of one GPU, so that the choice of the GPU matters."""
        return self.gpus == 1 and self.milli_per_gpu < MILLI_PER_GPU

    def allocation(self, pool: int, devices: tuple[int, ...]) -> Allocation:
        """Return the allocation of these devices of one pool."""
        whole = self.milli_per_gpu == MILLI_PER_GPU
        gpus, part = (self.gpus, 0) if whole else (0, self.milli_per_gpu)
        return Allocation((pool,), (gpus,), (self.cpus,), (self.memory,), part=part, devices=(devices,))

    @cached_property
    def total_milli_gpu(self) -> int:
        """Total of its GPUs, in milli-GPU."""
        return self.gpus * self.milli_per_gpu


@dataclass(frozen=True, slots=True)
class TargetWorkload:
    """The target workload M (section 3.2): tasks, and the probability of each to be the next, in sum 1."""

    tasks: tuple[TaskDemand, ...]
    popularity: tuple[float, ...]


def typical_workload(tasks: Iterable[TaskDemand], coverage: float = COVERAGE) -> TargetWorkload:
    """Return the most common tasks that together are the fraction `coverage` of all; memory is ignored.

    Equally common tasks are ordered by CPUs, part of each GPU, GPUs and types, the largest first. Raises PolicyError if
    there is no task.
    """
    return workload_of_counts(Counter(tasks), coverage)


def workload_of_counts(tasks: Mapping[TaskDemand, int], coverage: float = COVERAGE) -> TargetWorkload:
    """Return the typical workload of tasks and how often each occurred. Raises PolicyError if there is no task."""
    counts = Counter[TaskDemand]()
    for task, count in tasks.items():
        counts[TaskDemand(task.cpus, 0, task.gpus, task.milli_per_gpu, task.gpu_types)] += count
    if not counts:
        raise PolicyError("there is no typical workload: no task is known")
    ranked = sorted(counts, key=lambda t: (counts[t], t.cpus, t.milli_per_gpu, t.gpus, t.gpu_types), reverse=True)
    enough, total, chosen = coverage * counts.total(), 0, list[TaskDemand]()
    for task in ranked:
        if total >= enough:
            break
        chosen.append(task)
        total += counts[task]
    return TargetWorkload(tuple(chosen), tuple(counts[task] / total for task in chosen))


_DEFAULT_WORKLOAD: Final = TargetWorkload((TaskDemand(1, 0, 1, MILLI_PER_GPU),), (1.0,))
"""The target workload before any request: a whole GPU with 1 CPU."""


def target_workload(requests: Iterable[tuple[Request, int]], pools: Pools) -> TargetWorkload:
    """Return the target workload of requests, each with how often it occurred.

    Requests that fit nowhere are left out: more shards than a GPU has, or more nodes than there are.
    """
    counts = count_tasks(requests, pools)
    return workload_of_counts(counts) if counts else _DEFAULT_WORKLOAD


def count_tasks(requests: Iterable[tuple[Request, int]], pools: Pools) -> Counter[TaskDemand]:
    """Return what requests take of single nodes, each with how often; nothing of those that fit nowhere."""
    counts, each = Counter[TaskDemand](), Counter[Request]()
    for request, occurrences in requests:
        each[request] += occurrences
    for request, occurrences in each.items():
        for task, nodes in _tasks_of(request, pools):
            counts[task] += nodes * occurrences
    return counts


def _tasks_of(request: Request, pools: Pools) -> Iterator[tuple[TaskDemand, int]]:
    """Yield what the request takes of nodes, each with the number of nodes; nothing if it fits nowhere."""
    most_shards = int(pools.shards.max(initial=0))
    of_type = [request.gpu_type in (None, gpu_type) for gpu_type in pools.gpu_types]
    node_gpus = sorted(pools.device_count[of_type].tolist(), reverse=True)
    gang = gang_of(request, None, memory_tunable=False, node_gpus=node_gpus)
    if gang.shards > most_shards or gang.parts < gang.min_nodes or gang.min_nodes > len(pools.nodes):
        return
    cpus, types = -(-max(request.cpus, 1) // gang.min_nodes), (request.gpu_type,) if request.gpu_type else ()
    each, more = divmod(gang.parts, gang.min_nodes)
    for parts, nodes in ((each + 1, more), (each, gang.min_nodes - more)):
        gpus = 1 if gang.shards else parts * gang.gpus_per_part
        milli = MILLI_PER_GPU * gang.shards // most_shards if gang.shards else MILLI_PER_GPU if gpus else 0
        memory = max(request.memory, request.memory_per_gpu * gpus, request.memory_per_cpu * cpus)
        if nodes:
            yield TaskDemand(cpus, memory, gpus, milli, types if gpus else ()), nodes


_DIGITS: Final = 6
"""Decimals that milli-GPU are rounded to: sums of popularities differ in the last bits by the order of adding."""


class FragmentClass(IntEnum):
    """Why a task of M can or cannot use the idle GPUs of a node: all but SATISFIED are fragments (figure 4)."""

    LACK_BOTH = 0
    """Both CPUs and GPUs are too few."""
    LACK_GPU = 1
    """CPUs are enough, GPUs are not; also the devices that are too small for a task that fits."""
    SATISFIED = 2
    LACK_CPU = 3
    """GPUs are enough, but stranded by too few CPUs."""
    NO_GPU = 4
    """The task needs no GPU and fits."""
    NO_GPU_LACK_CPU = 5
    NO_ACCESS = 6
    """The task does not run on this GPU type."""


class FragmentationMeasure:
    """F of the pools of `FreeResources`, for one target workload. A node of the paper has GPUs of one type: a pool."""

    def __init__(self, workload: TargetWorkload, free: FreeResources) -> None:
        self.workload, self.free = workload, free
        gpu_types = tuple(sorted(set(free.pools.gpu_types)))
        self._gpu_types = gpu_types
        self._type_of: Ints = np.array([gpu_types.index(kind) for kind in free.pools.gpu_types], dtype=np.int64)
        asking = [(task, p) for task, p in zip(workload.tasks, workload.popularity, strict=True) if task.gpus]
        classes = sorted({(task.milli_per_gpu, task.gpus, task.gpu_types) for task, _ in asking})
        self._milli: Ints = np.array([milli for milli, _, _ in classes], dtype=np.int64)
        self._gpus: Ints = np.array([gpus for _, gpus, _ in classes], dtype=np.int64)
        self._cpu_steps: Ints = np.array(sorted({task.cpus for task, _ in asking}), dtype=np.int64)
        likely = np.zeros((len(self._cpu_steps) + 1, len(classes)))
        for task, popularity in asking:
            above = np.searchsorted(self._cpu_steps, task.cpus, "right")
            likely[above:, classes.index((task.milli_per_gpu, task.gpus, task.gpu_types))] += popularity
        accepted = np.array(
            [[not types or kind in types for _, _, types in classes] for kind in gpu_types], dtype=np.float64
        ).reshape(len(gpu_types), len(classes))
        self._likely: Floats = likely[None] * accepted[:, None]
        """P_k(c); [types, CPU steps that c reaches, classes]."""
        self._total = float(sum(workload.popularity))

    def amount(self, pools: Ints) -> Floats:
        """Return F of each of these pools, in milli-GPU; [pools]."""
        return self._amount(
            self.free.cpus[self.free.pools.node_of[pools]], self._type_of[pools], self.free.milli[pools]
        )

    def amount_after(self, task: TaskDemand, pools: Ints) -> Floats:
        """Return F of each of these pools with the task placed there, in milli-GPU; undefined where it does not fit.

        The shape is [pools, devices] for a part of a GPU, by the device it is placed on, else [pools, 1].
        """
        cpu = self.free.cpus[self.free.pools.node_of[pools]] - task.cpus
        kind, gpus = self._type_of[pools], self.free.milli[pools]
        if not task.gpus:
            return self._amount(cpu, kind, gpus)[:, None]
        if not task.shares_gpu:
            return self._amount(cpu, kind, self._without(gpus, task))[:, None]
        width = gpus.shape[1]
        each = np.repeat(gpus[:, None, :], width, axis=1)
        each[:, np.arange(width), np.arange(width)] -= task.milli_per_gpu
        amounts = self._amount(np.repeat(cpu, width), np.repeat(kind, width), each.reshape(-1, width))
        return amounts.reshape(-1, width)

    @staticmethod
    def _without(gpus: Ints, task: TaskDemand) -> Ints:
        """Return each node's devices after the task took the first that are large enough; [nodes, devices]."""
        large = gpus >= task.milli_per_gpu
        return np.where(large & (large.cumsum(axis=1) <= task.gpus), gpus - task.milli_per_gpu, gpus)

    def _amount(self, cpu: Ints, kind: Ints, gpus: Ints) -> Floats:
        large = gpus[:, :, None] >= self._milli
        usable = (gpus[:, :, None] * large).sum(axis=1)
        likely = self._likely[kind, np.searchsorted(self._cpu_steps, cpu, "right")]
        likely = likely * (large.sum(axis=1) >= self._gpus)
        free = gpus.sum(axis=1)
        return np.asarray(np.round(self._total * free - (likely * usable).sum(axis=1), _DIGITS), dtype=np.float64)

    def by_class(self, pools: Ints) -> Floats:
        """Return the expected idle milli-GPU of each of these pools by `FragmentClass`; [pools, classes]."""
        free, amounts = self.free, np.zeros((len(pools), len(FragmentClass)))
        cpu, gpus, rows = free.cpus[free.pools.node_of[pools]], free.milli[pools], np.arange(len(pools))
        whole = gpus.sum(axis=1)
        for task, popularity in zip(self.workload.tasks, self.workload.popularity, strict=True):
            enough = cpu >= task.cpus
            if not task.gpus:
                amounts[rows, np.where(enough, FragmentClass.NO_GPU, FragmentClass.NO_GPU_LACK_CPU)] += (
                    popularity * whole
                )
                continue
            large = gpus >= task.milli_per_gpu
            fits = large.sum(axis=1) >= task.gpus
            classes = np.where(
                fits,
                np.where(enough, FragmentClass.SATISFIED, FragmentClass.LACK_CPU),
                np.where(enough, FragmentClass.LACK_GPU, FragmentClass.LACK_BOTH),
            )
            accepted = [not task.gpu_types or kind in task.gpu_types for kind in self._gpu_types]
            classes = np.where(np.array(accepted)[self._type_of[pools]], classes, FragmentClass.NO_ACCESS)
            small = np.where(classes == FragmentClass.SATISFIED, (gpus * ~large).sum(axis=1), 0)
            amounts[rows, classes] += popularity * (whole - small)
            amounts[:, FragmentClass.LACK_GPU] += popularity * small
        return amounts
