"""Task demands, the target workload, free GPUs by device, and the fragmentation measure.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.errors import PolicyError

COVERAGE: Final = 0.95
"""The fraction of all tasks that the typical tasks cover."""


@dataclass(frozen=True)
class TaskDemand:
    """What a task takes on one node: milli-CPUs, MiB, GPUs, and `milli_per_gpu` of each of these GPUs.

    `gpu_types` are the types it runs on, empty for any. Raises PolicyError for amounts that no task can have.
    """

    milli_cpu: int
    memory: int
    gpus: int
    milli_per_gpu: int
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        part = 0 < self.milli_per_gpu <= MILLI_PER_GPU if self.gpus else self.milli_per_gpu == 0
        if not part or min(self.milli_cpu, self.memory, self.gpus) < 0:
            raise PolicyError(
                f"{self} is no task: it needs 1 to {MILLI_PER_GPU} milli-GPU per GPU, and no amount below 0"
            )

    @cached_property
    def shares_gpu(self) -> bool:
        """Whether it takes a part of one GPU, so that the choice of the GPU matters."""
        return self.gpus == 1 and self.milli_per_gpu < MILLI_PER_GPU

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
        counts[TaskDemand(task.milli_cpu, 0, task.gpus, task.milli_per_gpu, task.gpu_types)] += count
    if not counts:
        raise PolicyError("there is no typical workload: no task is known")
    ranked = sorted(counts, key=lambda t: (counts[t], t.milli_cpu, t.milli_per_gpu, t.gpus, t.gpu_types), reverse=True)
    enough, total, chosen = coverage * counts.total(), 0, list[TaskDemand]()
    for task in ranked:
        if total >= enough:
            break
        chosen.append(task)
        total += counts[task]
    return TargetWorkload(tuple(chosen), tuple(counts[task] / total for task in chosen))


GPU_COUNT_TAGS: Final = (0, 1, 2, 4, 8)
"""The classes of GPU clustering: 0 is a part of a GPU, the others are numbers of whole GPUs."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """The idle resources of a node: milli-CPUs, MiB, milli-GPU of each device, and the GPU type."""

    milli_cpu: int
    memory: int
    milli_gpus: tuple[int, ...]
    gpu_type: str


class FreeDevices:
    """The idle resources of all nodes as arrays. The first of equal nodes is preferred.

    `milli_cpu`, `memory` and `gpu_count` have shape [nodes], `milli_gpus` [nodes, devices] with 0 where a node has no
    such device. `type_index` is the index of each node's GPU type in `gpu_types`, `tag_counts` how many tasks of each
    of `GPU_COUNT_TAGS` run there; [nodes, tags]. `changed_nodes` logs each node that changed, in order, so that scores
    are updated only for these.
    """

    def __init__(self, nodes: Sequence[FreeNode]) -> None:
        width = max((len(node.milli_gpus) for node in nodes), default=0) or 1
        self.gpu_types = tuple(sorted({node.gpu_type for node in nodes}))
        self.milli_cpu: Ints = np.array([node.milli_cpu for node in nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.memory for node in nodes], dtype=np.int64)
        self.milli_gpus: Ints = np.array(
            [[*node.milli_gpus, *[0] * (width - len(node.milli_gpus))] for node in nodes], dtype=np.int64
        )
        self.milli_gpus = self.milli_gpus.reshape(len(nodes), width)
        self.gpu_count: Ints = np.array([len(node.milli_gpus) for node in nodes], dtype=np.int64)
        self.type_index: Ints = np.array([self.gpu_types.index(node.gpu_type) for node in nodes], dtype=np.int64)
        self.tag_counts: Ints = np.zeros((len(nodes), len(GPU_COUNT_TAGS)), dtype=np.int64)
        self.changed_nodes: list[int] = []
        self._state_ids: dict[tuple[object, ...], int] = {}
        self.state_id: Ints = np.array([self._state_id(node) for node in range(len(nodes))], dtype=np.int64)
        """Equal for nodes that every heuristic scores alike."""

    def __len__(self) -> int:
        return len(self.milli_cpu)

    def accepts(self, task: TaskDemand) -> Mask:
        """Whether the task runs on each GPU type; [types]."""
        return np.array([not task.gpu_types or kind in task.gpu_types for kind in self.gpu_types], dtype=np.bool_)

    def fits(self, task: TaskDemand, nodes: Ints) -> Mask:
        """Whether the task fits on each of these nodes now; [nodes]."""
        enough_cpu_and_memory = (self.milli_cpu[nodes] >= task.milli_cpu) & (self.memory[nodes] >= task.memory)
        if not task.gpus:
            return enough_cpu_and_memory
        enough_gpus = (self.milli_gpus[nodes] >= task.milli_per_gpu).sum(axis=1) >= task.gpus
        return np.asarray(
            enough_cpu_and_memory & enough_gpus & self.accepts(task)[self.type_index[nodes]], dtype=np.bool_
        )

    def lowest_devices(self, node: int, task: TaskDemand) -> tuple[int, ...]:
        """Return the first devices with enough idle for the task. Raises PolicyError if there are too few."""
        devices = np.flatnonzero(self.milli_gpus[node] >= task.milli_per_gpu)[: task.gpus]
        if len(devices) < task.gpus:
            raise PolicyError(f"node {node} has only {len(devices)} GPUs that fit {task}")
        return tuple(int(device) for device in devices)

    def allocate(self, node: int, task: TaskDemand, devices: Iterable[int]) -> None:
        """Allocate the task. Raises PolicyError if its resources are not idle."""
        self._change(node, task, tuple(devices), -1)

    def release(self, node: int, task: TaskDemand, devices: Iterable[int]) -> None:
        """Release the task. Raises PolicyError if that exceeds whole GPUs."""
        self._change(node, task, tuple(devices), 1)

    def _change(self, node: int, task: TaskDemand, devices: tuple[int, ...], sign: int) -> None:
        cpu, memory = self.milli_cpu[node] + sign * task.milli_cpu, self.memory[node] + sign * task.memory
        parts = [self.milli_gpus[node, device] + sign * task.milli_per_gpu for device in devices]
        if min(cpu, memory, *parts) < 0 or max(parts, default=0) > MILLI_PER_GPU or len(devices) != task.gpus:
            raise PolicyError(f"node {node} cannot {'allocate' if sign < 0 else 'release'} {task} on GPUs {devices}")
        self.milli_cpu[node], self.memory[node] = cpu, memory
        for device, part in zip(devices, parts, strict=True):
            self.milli_gpus[node, device] = part
        if task.gpus:
            self.tag_counts[node, _tag(task)] -= sign
        self.state_id[node] = self._state_id(node)
        self.changed_nodes.append(node)

    def _state_id(self, node: int) -> int:
        state = (
            int(self.type_index[node]), int(self.milli_cpu[node]), int(self.gpu_count[node]),
            self.milli_gpus[node].tobytes(), (self.tag_counts[node] > 0).tobytes(),
        )  # fmt: skip
        return self._state_ids.setdefault(state, len(self._state_ids))


def _tag(task: TaskDemand) -> int:
    """Return the index of the task's tag. A number of GPUs between two tags has the lower one."""
    gpus = 0 if task.shares_gpu else task.gpus
    return max(index for index, tag in enumerate(GPU_COUNT_TAGS) if tag <= gpus)


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
    """F of the nodes of a `FreeDevices`, for one target workload."""

    def __init__(self, workload: TargetWorkload, free: FreeDevices) -> None:
        self.workload, self.free = workload, free
        asking = [(task, p) for task, p in zip(workload.tasks, workload.popularity, strict=True) if task.gpus]
        classes = sorted({(task.milli_per_gpu, task.gpus, task.gpu_types) for task, _ in asking})
        self._milli: Ints = np.array([milli for milli, _, _ in classes], dtype=np.int64)
        self._gpus: Ints = np.array([gpus for _, gpus, _ in classes], dtype=np.int64)
        self._cpu_steps: Ints = np.array(sorted({task.milli_cpu for task, _ in asking}), dtype=np.int64)
        likely = np.zeros((len(self._cpu_steps) + 1, len(classes)))
        for task, popularity in asking:
            above = np.searchsorted(self._cpu_steps, task.milli_cpu, "right")
            likely[above:, classes.index((task.milli_per_gpu, task.gpus, task.gpu_types))] += popularity
        accepted = np.array(
            [[not types or kind in types for _, _, types in classes] for kind in free.gpu_types], dtype=np.float64
        ).reshape(len(free.gpu_types), len(classes))
        self._likely: Floats = likely[None] * accepted[:, None]
        """P_k(c); [types, CPU steps that c reaches, classes]."""
        self._total = float(sum(workload.popularity))

    def amount(self, nodes: Ints) -> Floats:
        """Return F of each of these nodes, in milli-GPU; [nodes]."""
        return self._amount(self.free.milli_cpu[nodes], self.free.type_index[nodes], self.free.milli_gpus[nodes])

    def amount_after(self, task: TaskDemand, nodes: Ints) -> Floats:
        """Return F of each of these nodes with the task placed there, in milli-GPU; undefined where it does not fit.

        The shape is [nodes, devices] for a part of a GPU, by the device it is placed on, else [nodes, 1].
        """
        cpu, kind, gpus = (
            self.free.milli_cpu[nodes] - task.milli_cpu,
            self.free.type_index[nodes],
            self.free.milli_gpus[nodes],
        )
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

    def by_class(self, nodes: Ints) -> Floats:
        """Return the expected idle milli-GPU of each of these nodes by `FragmentClass`; [nodes, classes]."""
        free, amounts = self.free, np.zeros((len(nodes), len(FragmentClass)))
        cpu, gpus, rows = free.milli_cpu[nodes], free.milli_gpus[nodes], np.arange(len(nodes))
        whole = gpus.sum(axis=1)
        for task, popularity in zip(self.workload.tasks, self.workload.popularity, strict=True):
            enough = cpu >= task.milli_cpu
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
            classes = np.where(free.accepts(task)[free.type_index[nodes]], classes, FragmentClass.NO_ACCESS)
            small = np.where(classes == FragmentClass.SATISFIED, (gpus * ~large).sum(axis=1), 0)
            amounts[rows, classes] += popularity * (whole - small)
            amounts[:, FragmentClass.LACK_GPU] += popularity * small
        return amounts
