"""Resources, and the nodes, GPUs, partitions and reservations as of one poll of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Resources:
    """GPUs, CPUs (as Slurm counts them) and memory in MiB of a node, a job or an allocation."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.gpus + other.gpus, self.cpus + other.cpus, self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.gpus - other.gpus, self.cpus - other.cpus, self.memory - other.memory)

    def fits_in(self, other: Resources) -> bool:
        """Whether `other` has at least as many GPUs and CPUs and as much memory."""
        return self.gpus <= other.gpus and self.cpus <= other.cpus and self.memory <= other.memory


MILLI_PER_GPU = 1000
"""Milli-GPU per GPU."""


class NodeState(StrEnum):
    """Whether a node can start jobs; Slurm's own state is in `Node.state_text`."""

    UP = "up"
    DRAINED = "drained"
    """Its jobs go on, but no new ones start."""
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its index on the node, its type and how much of it is used, in milli-GPU.

    `shards` is the number of `gres/shard` that Slurm has configured on it.
    """

    index: int
    type: str
    used: int = 0
    shards: int = 0

    @property
    def idle(self) -> bool:
        return self.used == 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its resources, how much of them is used, and its state.

    `total` is what Slurm can allocate (CPUs less the specialised ones, memory less MemSpecLimit).
    `used` counts every allocation on the node, of managed jobs or not; its `gpus` are the GPUs that are not idle.
    """

    name: str
    gpus: tuple[Gpu, ...]
    total: Resources
    used: Resources
    state: NodeState = NodeState.UP
    state_text: str = "IDLE"
    features: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    reason: str = ""
    weight: int = 1
    reservation: str = ""

    @property
    def free(self) -> Resources:
        """What a new job with whole GPUs could get here, regardless of the node's state."""
        return self.total - self.used

    @property
    def gpu_types(self) -> frozenset[str]:
        return frozenset(gpu.type for gpu in self.gpus)

    def proportional_share(self, gpus: int) -> Resources:
        """Returns the GPU-proportional share of the node for `gpus` GPUs, rounded down (Synergy, section 2)."""
        if not self.gpus:
            return Resources()
        return Resources(
            gpus,
            self.total.cpus * gpus // len(self.gpus),
            self.total.memory * gpus // len(self.gpus),
        )


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its nodes and limits. Times are in seconds; None is unlimited."""

    name: str
    nodes: frozenset[str]
    up: bool = True
    max_time: int | None = None
    default: bool = False
    priority_tier: int = 1
    preempt_exempt_time: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes reserved for users or accounts from `start` to `end` (unix seconds)."""

    name: str
    nodes: frozenset[str]
    start: float
    end: float
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()

    @staticmethod
    def active(reservations: Iterable[Reservation], at: float) -> tuple[Reservation, ...]:
        return tuple(r for r in reservations if r.start <= at < r.end)
