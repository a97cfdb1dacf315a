"""What is idle, device by device: the state that the measure and every heuristic look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import MILLI
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["TAGS", "Idle", "Server"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

TAGS: Final = (0, 1, 2, 4, 8)
"""Kinds of task that GPU clustering tells apart: a part of a GPU, and so many whole ones."""


@dataclass(frozen=True, slots=True)
class Server:
    """A node: CPUs in thousandths of a core and MiB that are idle, each device's idle part in milli-GPU, their type."""

    cpu: int
    memory: int
    gpus: tuple[int, ...]
    gpu_type: str


class Idle:
    """Idle resources of all nodes as arrays; their order decides between equals.

    `cpu` and `memory` are of shape [nodes], `gpus` of [nodes, devices] with 0 where a node has no such device, `kind`
    the position of each node's GPU type in `types`, `tags` how many tasks of each of `TAGS` run there. `log` has each
    node that changed, in order, so that others know what they have to look at again.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        width = max((len(server.gpus) for server in servers), default=0) or 1
        self.types = tuple(sorted({server.gpu_type for server in servers}))
        self.cpu: Ints = np.array([server.cpu for server in servers], dtype=np.int64)
        self.memory: Ints = np.array([server.memory for server in servers], dtype=np.int64)
        self.gpus: Ints = np.array([[*s.gpus, *[0] * (width - len(s.gpus))] for s in servers], dtype=np.int64)
        self.gpus = self.gpus.reshape(len(servers), width)
        self.count: Ints = np.array([len(server.gpus) for server in servers], dtype=np.int64)
        self.kind: Ints = np.array([self.types.index(server.gpu_type) for server in servers], dtype=np.int64)
        self.tags: Ints = np.zeros((len(servers), len(TAGS)), dtype=np.int64)
        self.log: list[int] = []
        self._states: dict[tuple[object, ...], int] = {}
        self.state: Ints = np.array([self._state(node) for node in range(len(servers))], dtype=np.int64)
        """Equal for nodes that no heuristic could tell apart."""

    def __len__(self) -> int:
        return len(self.cpu)

    def accepts(self, task: Task) -> Mask:
        """By GPU type, whether the task runs on it; [types]."""
        return np.array([not task.types or kind in task.types for kind in self.types], dtype=np.bool_)

    def fits(self, task: Task, nodes: Ints) -> Mask:
        """Whether the task fits each of these nodes as it is now."""
        room = (self.cpu[nodes] >= task.cpu) & (self.memory[nodes] >= task.memory)
        if not task.gpus:
            return room
        enough = (self.gpus[nodes] >= task.milli).sum(axis=1) >= task.gpus
        return np.asarray(room & enough & self.accepts(task)[self.kind[nodes]], dtype=np.bool_)

    def lowest(self, node: int, task: Task) -> tuple[int, ...]:
        """The first devices that are large enough for the task. Raises PolicyError for too few."""
        devices = np.flatnonzero(self.gpus[node] >= task.milli)[: task.gpus]
        if len(devices) < task.gpus:
            raise PolicyError(f"node {node} has {len(devices)} GPUs for {task}")
        return tuple(int(device) for device in devices)

    def take(self, node: int, task: Task, devices: Iterable[int]) -> None:
        """The task is placed. Raises PolicyError for what is not idle."""
        self._change(node, task, tuple(devices), -1)

    def give(self, node: int, task: Task, devices: Iterable[int]) -> None:
        """The task has left."""
        self._change(node, task, tuple(devices), 1)

    def _change(self, node: int, task: Task, devices: tuple[int, ...], sign: int) -> None:
        cpu, memory = self.cpu[node] + sign * task.cpu, self.memory[node] + sign * task.memory
        parts = [self.gpus[node, device] + sign * task.milli for device in devices]
        if min(cpu, memory, *parts) < 0 or max(parts, default=0) > MILLI or len(devices) != task.gpus:
            raise PolicyError(f"node {node} cannot {'give' if sign < 0 else 'take back'} {task} on GPUs {devices}")
        self.cpu[node], self.memory[node] = cpu, memory
        for device, part in zip(devices, parts, strict=True):
            self.gpus[node, device] = part
        if task.gpus:
            self.tags[node, _tag(task)] -= sign
        self.state[node] = self._state(node)
        self.log.append(node)

    def _state(self, node: int) -> int:
        seen = (
            int(self.kind[node]), int(self.cpu[node]), int(self.count[node]),
            self.gpus[node].tobytes(), (self.tags[node] > 0).tobytes(),
        )  # fmt: skip
        return self._states.setdefault(seen, len(self._states))


def _tag(task: Task) -> int:
    """Widths that are none of the tags count as the next below."""
    width = 0 if task.partial else task.gpus
    return max(place for place, tag in enumerate(TAGS) if tag <= width)
