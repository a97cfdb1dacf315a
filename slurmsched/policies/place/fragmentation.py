"""What asks for a part of a node, and what usually does.

What is idle, device by device: the state that the measure and every heuristic look at.

The fragmentation measure (Weng et al., "Beware of Fragmentation", ATC 2023, section 3.2).

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

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.errors import PolicyError

COVERAGE = 0.95
"""The part of all tasks that the typical ones stand for."""


@dataclass(frozen=True)
class TaskDemand:
    """What one task takes on one node: CPUs in thousandths of a core, memory in MiB, GPUs, and `milli` of each of them.

    `types` are the GPU types it runs on, none for any. Raises PolicyError for what is no task.
    """

    milli_cpu: int
    memory: int
    gpus: int
    milli_per_gpu: int
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        part = 0 < self.milli_per_gpu <= MILLI_PER_GPU if self.gpus else self.milli_per_gpu == 0
        if not part or min(self.milli_cpu, self.memory, self.gpus) < 0:
            raise PolicyError(f"{self} is no task: it takes 1 to {MILLI_PER_GPU} of each GPU, and nothing is below 0")

    @cached_property
    def shares_gpu(self) -> bool:
        """Whether it takes a part of one GPU, so that it matters of which."""
        return self.gpus == 1 and self.milli_per_gpu < MILLI_PER_GPU

    @cached_property
    def total_milli_gpu(self) -> int:
        """GPUs in all, in milli-GPU."""
        return self.gpus * self.milli_per_gpu


@dataclass(frozen=True, slots=True)
class TargetWorkload:
    """Tasks and how likely each is to be the next that comes, together 1: the target workload M (section 3.2)."""

    tasks: tuple[TaskDemand, ...]
    popularity: tuple[float, ...]


def typical_workload(tasks: Iterable[TaskDemand], coverage: float = COVERAGE) -> TargetWorkload:
    """The commonest kinds of task that together are `cover` of all; memory makes no difference.

    Kinds as common as each other come in the order of their CPUs, GPU parts, GPUs and types, the largest first. Raises
    PolicyError where there is no task.
    """
    return workload_of_counts(Counter(tasks), coverage)


def workload_of_counts(tasks: Mapping[TaskDemand, int], coverage: float = COVERAGE) -> TargetWorkload:
    """The same of tasks and how often each came. Raises PolicyError where there is no task."""
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


Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

GPU_COUNT_TAGS: Final = (0, 1, 2, 4, 8)
"""Kinds of task that GPU clustering tells apart: a part of a GPU, and so many whole ones."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A node: CPUs in thousandths of a core and MiB that are idle, each device's idle part in milli-GPU, their type."""

    milli_cpu: int
    memory: int
    milli_gpus: tuple[int, ...]
    gpu_type: str


class FreeDevices:
    """Idle resources of all nodes as arrays; their order decides between equals.

    `cpu` and `memory` are of shape [nodes], `gpus` of [nodes, devices] with 0 where a node has no such device, `kind`
    the position of each node's GPU type in `types`, `tags` how many tasks of each of `TAGS` run there. `log` has each
    node that changed, in order, so that others know what they have to look at again.
    """

    def __init__(self, nodes: Sequence[FreeNode]) -> None:
        width = max((len(server.milli_gpus) for server in nodes), default=0) or 1
        self.gpu_types = tuple(sorted({server.gpu_type for server in nodes}))
        self.milli_cpu: Ints = np.array([server.milli_cpu for server in nodes], dtype=np.int64)
        self.memory: Ints = np.array([server.memory for server in nodes], dtype=np.int64)
        self.milli_gpus: Ints = np.array(
            [[*s.milli_gpus, *[0] * (width - len(s.milli_gpus))] for s in nodes], dtype=np.int64
        )
        self.milli_gpus = self.milli_gpus.reshape(len(nodes), width)
        self.gpu_count: Ints = np.array([len(server.milli_gpus) for server in nodes], dtype=np.int64)
        self.type_index: Ints = np.array([self.gpu_types.index(server.gpu_type) for server in nodes], dtype=np.int64)
        self.tag_counts: Ints = np.zeros((len(nodes), len(GPU_COUNT_TAGS)), dtype=np.int64)
        self.changed_nodes: list[int] = []
        self._state_ids: dict[tuple[object, ...], int] = {}
        self.state_id: Ints = np.array([self._state_id(node) for node in range(len(nodes))], dtype=np.int64)
        """Equal for nodes that no heuristic could tell apart."""

    def __len__(self) -> int:
        return len(self.milli_cpu)

    def accepts(self, task: TaskDemand) -> Mask:
        """By GPU type, whether the task runs on it; [types]."""
        return np.array([not task.gpu_types or kind in task.gpu_types for kind in self.gpu_types], dtype=np.bool_)

    def fits(self, task: TaskDemand, nodes: Ints) -> Mask:
        """Whether the task fits each of these nodes as it is now."""
        enough_cpu_and_memory = (self.milli_cpu[nodes] >= task.milli_cpu) & (self.memory[nodes] >= task.memory)
        if not task.gpus:
            return enough_cpu_and_memory
        enough_gpus = (self.milli_gpus[nodes] >= task.milli_per_gpu).sum(axis=1) >= task.gpus
        return np.asarray(
            enough_cpu_and_memory & enough_gpus & self.accepts(task)[self.type_index[nodes]], dtype=np.bool_
        )

    def lowest_devices(self, node: int, task: TaskDemand) -> tuple[int, ...]:
        """The first devices that are large enough for the task. Raises PolicyError for too few."""
        devices = np.flatnonzero(self.milli_gpus[node] >= task.milli_per_gpu)[: task.gpus]
        if len(devices) < task.gpus:
            raise PolicyError(f"node {node} has {len(devices)} GPUs for {task}")
        return tuple(int(device) for device in devices)

    def allocate(self, node: int, task: TaskDemand, devices: Iterable[int]) -> None:
        """The task is placed. Raises PolicyError for what is not idle."""
        self._change(node, task, tuple(devices), -1)

    def release(self, node: int, task: TaskDemand, devices: Iterable[int]) -> None:
        """The task has left."""
        self._change(node, task, tuple(devices), 1)

    def _change(self, node: int, task: TaskDemand, devices: tuple[int, ...], sign: int) -> None:
        cpu, memory = self.milli_cpu[node] + sign * task.milli_cpu, self.memory[node] + sign * task.memory
        parts = [self.milli_gpus[node, device] + sign * task.milli_per_gpu for device in devices]
        if min(cpu, memory, *parts) < 0 or max(parts, default=0) > MILLI_PER_GPU or len(devices) != task.gpus:
            raise PolicyError(f"node {node} cannot {'give' if sign < 0 else 'take back'} {task} on GPUs {devices}")
        self.milli_cpu[node], self.memory[node] = cpu, memory
        for device, part in zip(devices, parts, strict=True):
            self.milli_gpus[node, device] = part
        if task.gpus:
            self.tag_counts[node, _tag(task)] -= sign
        self.state_id[node] = self._state_id(node)
        self.changed_nodes.append(node)

    def _state_id(self, node: int) -> int:
        seen = (
            int(self.type_index[node]), int(self.milli_cpu[node]), int(self.gpu_count[node]),
            self.milli_gpus[node].tobytes(), (self.tag_counts[node] > 0).tobytes(),
        )  # fmt: skip
        return self._state_ids.setdefault(seen, len(self._state_ids))


def _tag(task: TaskDemand) -> int:
    """Widths that are none of the tags count as the next below."""
    width = 0 if task.shares_gpu else task.gpus
    return max(index for index, tag in enumerate(GPU_COUNT_TAGS) if tag <= width)


Floats = NDArray[np.float64]

_DIGITS = 6
"""Sums of popularities differ in their last bits by the order of adding: milli-GPU are rounded to so many digits."""


class FragmentClass(IntEnum):
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


class FragmentationMeasure:
    """F over the nodes of an `Idle`, for one target workload."""

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
        """P_k(c) by GPU type, by how many of the steps c reaches, by class."""
        self._total = float(sum(workload.popularity))

    def amount(self, nodes: Ints) -> Floats:
        """F of each of these nodes, in milli-GPU; [nodes]."""
        return self._amount(self.free.milli_cpu[nodes], self.free.type_index[nodes], self.free.milli_gpus[nodes])

    def amount_after(self, task: TaskDemand, nodes: Ints) -> Floats:
        """F of each of these nodes with the task placed there; [nodes, devices] for a part of a GPU, by the device that
        it is placed on, else [nodes, 1]. Meaningless where it does not fit."""
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
        found = self._amount(np.repeat(cpu, width), np.repeat(kind, width), each.reshape(-1, width))
        return found.reshape(-1, width)

    @staticmethod
    def _without(gpus: Ints, task: TaskDemand) -> Ints:
        """Each node's devices after the first that are large enough for the task were taken."""
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
        """What is idle on each of these nodes, by what becomes of it, in milli-GPU; [nodes, fragments]."""
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
            names = np.where(
                fits,
                np.where(enough, FragmentClass.SATISFIED, FragmentClass.LACK_CPU),
                np.where(enough, FragmentClass.LACK_GPU, FragmentClass.LACK_BOTH),
            )
            names = np.where(free.accepts(task)[free.type_index[nodes]], names, FragmentClass.NO_ACCESS)
            small = np.where(names == FragmentClass.SATISFIED, (gpus * ~large).sum(axis=1), 0)
            amounts[rows, names] += popularity * (whole - small)
            amounts[:, FragmentClass.LACK_GPU] += popularity * small
        return amounts
