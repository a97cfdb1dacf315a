"""Resources, and the nodes, GPUs, partitions and reservations as of one poll of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import is_
from typing import Generic, TypeVar


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
    sockets: int = 1
    cores_per_socket: int = 0
    """0 where it is not known."""
    threads_per_core: int = 1
    """CPUs of a core as Slurm counts them: 1 where its CPUs are cores."""
    cpu_unit: int = 1
    """CPUs that Slurm gives only together: those of a core, with CR_Socket those of a socket."""
    bills_cpus: bool = False
    """Whether a job is charged for the CPUs that it asks for all the same, and so is its memory per CPU (CR_CPU)."""

    @property
    def free(self) -> Resources:
        """What a new job with whole GPUs could get here, regardless of the node's state."""
        return self.total - self.used

    @property
    def gpu_types(self) -> frozenset[str]:
        return frozenset(gpu.type for gpu in self.gpus)

    def proportional_share(self, gpus: int) -> Resources:
        """Returns the GPU-proportional share of the node for `gpus` GPUs, rounded down (Synergy, section 2), and to
        whole units of CPUs where it has any."""
        if not self.gpus:
            return Resources()
        cpus = self.total.cpus * gpus // len(self.gpus)
        return Resources(
            gpus,
            cpus // self.cpu_unit * self.cpu_unit or cpus,
            self.total.memory * gpus // len(self.gpus),
        )


OfNode = TypeVar("OfNode")


@dataclass(frozen=True, eq=False, slots=True)
class SameNodes(Generic[OfNode]):
    """Nodes, or what is told of each, that equal others if they are the same objects, as those are that have not
    changed since the last poll: a key for what is computed of them, by which ten thousand are compared in a
    millisecond."""

    nodes: tuple[OfNode, ...]

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.nodes)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameNodes):
            return NotImplemented
        return len(other.nodes) == len(self.nodes) and all(map(is_, self.nodes, other.nodes))


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
    max_cpus_per_node: int | None = None
    """Of all its jobs on a node together."""
    max_memory_per_node: int | None = None
    """MiB, of one job."""
    max_nodes: int | None = None
    qos: str = ""
    """The partition's own QOS; empty for none."""
    cpus_per_gpu: int = 0
    """DefCpuPerGPU: what a job with GPUs gets that asks for no CPUs; 0 for none."""
    memory_per_gpu: int = 0
    """DefMemPerGPU, in MiB: what a job with GPUs gets that asks for no memory; 0 for none."""
    memory_per_cpu: int = 0
    """DefMemPerCPU, in MiB; 0 for none."""
    accounts: frozenset[str] | None = None
    """Whose jobs it admits; None for all."""
    denied_accounts: frozenset[str] = frozenset()
    admitted_qos: frozenset[str] | None = None
    """Of jobs that it admits; None for all."""
    denied_qos: frozenset[str] = frozenset()
    sharing: str = ""
    """How Slurm shares nodes or CPUs among its jobs in another way than a plan does, as Slurm shows it: `EXCLUSIVE` for
    whole nodes, `FORCE:2`, `USER`; empty where it does not, also with `YES:4`, which a job has to ask for."""
    preempt_mode: str = "OFF"
    """What Slurm may do to its jobs for those of other partitions: `OFF`, `REQUEUE`, `SUSPEND`."""
    preempts: bool = False
    """Whether Slurm may preempt jobs of other partitions for its jobs."""
    narrows: bool = False
    """Whether a start in it can name its nodes so that slurmctld tests its job on no other."""

    def admits(self, account: str, qos: str) -> bool:
        """Whether it takes jobs of this account and QOS."""
        return (
            (self.accounts is None or account in self.accounts)
            and account not in self.denied_accounts
            and (self.admitted_qos is None or qos in self.admitted_qos)
            and qos not in self.denied_qos
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes reserved for users or accounts from `start` to `end` (unix seconds).

    With `maintenance` the nodes are in maintenance meanwhile. With `flex` its jobs may also run before and outside of
    it. With `magnetic` it also takes jobs that do not name it.
    """

    name: str
    nodes: frozenset[str]
    start: float
    end: float
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    maintenance: bool = False
    flex: bool = False
    magnetic: bool = False

    def may_admit(self, user: str, account: str) -> bool:
        """Whether it may be for jobs of this user and account.

        A name after a minus is that of somebody whom it is not for. One that lists neither users nor accounts is for
        others that are not known here, such as groups.
        """
        listed = self.users | self.accounts
        excludes = any(name.startswith("-") for name in listed)
        return not listed or excludes or user in self.users or account in self.accounts

    @staticmethod
    def active(reservations: Iterable[Reservation], at: float) -> tuple[Reservation, ...]:
        return tuple(r for r in reservations if r.start <= at < r.end)
