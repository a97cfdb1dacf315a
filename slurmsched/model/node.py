"""Resources, and the nodes and GPUs that have them, as one poll saw them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Resources:
    """GPUs, CPUs (as Slurm counts them) and memory in MiB, of a node, a job or a share."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.gpus + other.gpus, self.cpus + other.cpus, self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.gpus - other.gpus, self.cpus - other.cpus, self.memory - other.memory)

    def fits_in(self, other: Resources) -> bool:
        """Whether `other` holds at least this much of everything."""
        return self.gpus <= other.gpus and self.cpus <= other.cpus and self.memory <= other.memory


MILLI_PER_GPU = 1000
"""milli-GPU in one GPU."""


class NodeState(StrEnum):
    """What a node can be used for; Slurm's own words stay in `Node.state_text`."""

    UP = "up"
    DRAINED = "drained"
    """Runs what it runs and takes nothing new."""
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: its index on the node, its type and how much of it is taken, in milli-GPU.

    `shards` is how many `gres/shard` Slurm has configured on this device, 0 where none.
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
    """A server: what it has, what is taken on it, and what it may be used for.

    `total` is what Slurm may hand out (CPUs less the specialised ones, memory less MemSpecLimit), in CPUs and MiB.
    `used` counts every allocation on the node, ours or not; its `gpus` are the devices that are not idle.
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
        """What a new whole-GPU job could still get here, state aside."""
        return self.total - self.used

    @property
    def gpu_types(self) -> frozenset[str]:
        return frozenset(gpu.type for gpu in self.gpus)

    def proportional_share(self, gpus: int) -> Resources:
        """The GPU-proportional share of this node for `gpus` GPUs, rounded down (Synergy, section 2)."""
        if not self.gpus:
            return Resources()
        return Resources(
            gpus,
            self.total.cpus * gpus // len(self.gpus),
            self.total.memory * gpus // len(self.gpus),
        )


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its nodes and the limits on who may use it. Times in seconds, None is unlimited."""

    name: str
    nodes: frozenset[str]
    up: bool = True
    max_time: int | None = None
    default: bool = False
    priority_tier: int = 1
    preempt_exempt_time: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes promised to somebody from `start` to `end` (unix seconds)."""

    name: str
    nodes: frozenset[str]
    start: float
    end: float
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()

    @staticmethod
    def active(reservations: Iterable[Reservation], at: float) -> tuple[Reservation, ...]:
        return tuple(r for r in reservations if r.start <= at < r.end)
