"""Jobs: what they ask for, what they have, and their state."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Final

from slurmsched.model.hints import NO_HINTS, Hints
from slurmsched.model.node import Resources

JobId = str
"""A job as squeue names it: `123`, or `123_4` for a task of an array."""


class JobState(StrEnum):
    """The job states that a round distinguishes; Slurm's own state is in `Job.state_text`."""

    PENDING = "pending"
    RUNNING = "running"
    """Running or configuring: the job has its resources."""
    COMPLETING = "completing"
    """The processes are ending; the resources are not free yet."""
    SUSPENDED = "suspended"
    FINISHED = "finished"


class Hold(StrEnum):
    """The kind of hold that keeps a pending job from starting."""

    NONE = "none"
    USER = "user"
    ADMIN = "admin"
    REQUEUED = "requeued"
    """Requeued in held state (`scontrol requeuehold`)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for: totals for the whole job, but memory in MiB per node.

    `gpus_per_node` is set if the job fixes it (`--gres`, `--gpus-per-node`); None leaves the split to the scheduler.
    `memory` is 0 if the job asks for none. `cpus` is a multiple of `tasks`. `shards` counts those of all `nodes`.
    `pinned` are nodes that must all be part of the allocation (`--nodelist`).

    The form of the request is kept, as a batch script sees it in its environment whatever is changed later.
    `cpus_per_gpu`, `memory_per_cpu` and `memory_per_gpu` (MiB) are 0 where the job does not ask in that form; where it
    does, `cpus` and `memory` hold what it comes to. With `whole_memory` (`--mem=0`) it gets all memory of its nodes.
    `threads_per_core` are the threads that it uses of each core (`--threads-per-core`, `--hint=nomultithread`); 0: all.
    With `cpus_by_default` its partition gives it its CPUs by GPU, unless an update asks for others.
    With `memory_unscheduled` Slurm shares out no memory: a node needs as much, however many jobs run there.
    With `narrowed` Slurm tests it on its `pinned` nodes alone, and on no other.
    """

    gpus: int = 0
    gpu_type: str | None = None
    gpus_per_node: int | None = None
    nodes: int = 1
    max_nodes: int | None = None
    tasks: int = 1
    cpus: int = 1
    memory: int = 0
    shards: int = 0
    features: str = ""
    pinned: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    exclusive: bool = False
    memory_per_cpu: int = 0
    memory_per_gpu: int = 0
    cpus_per_gpu: int = 0
    whole_memory: bool = False
    threads_per_core: int = 0
    cpus_by_default: bool = False
    memory_unscheduled: bool = False
    narrowed: bool = False

    @property
    def keeps_cpus(self) -> bool:
        """Whether its CPUs follow from its GPUs or nodes, so that no update may change them."""
        return self.exclusive or self.cpus_per_gpu > 0

    @property
    def keeps_memory(self) -> bool:
        """Whether its memory follows from its CPUs, GPUs or nodes, or is not shared out: no update may set it."""
        by_others = self.exclusive or self.whole_memory or self.memory_per_cpu > 0 or self.memory_per_gpu > 0
        return by_others or self.memory_unscheduled


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """What a job has, or will have, on one node. `indices` are those of its GPUs, known once it runs, and `gpu_type` is
    their type, empty where it is not known; its shards are parts of them."""

    node: str
    resources: Resources
    gpu_type: str = ""
    indices: tuple[int, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job as of one poll of Slurm. Times are unix seconds, None if Slurm has none; limits are in seconds.

    `original_request` is what the owner asked for; `current_request` is what Slurm has now, which differs once a round
    has updated the job. `run_time` is that of the current run only, in seconds.
    """

    id: JobId
    user: str
    original_request: Request
    current_request: Request
    state: JobState = JobState.PENDING
    state_text: str = "PENDING"
    name: str = ""
    account: str = ""
    partitions: tuple[str, ...] = ()
    qos: str = ""
    reason: str = ""
    hold: Hold = Hold.NONE
    allocations: tuple[NodeAllocation, ...] = ()
    submit_time: float = 0.0
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    run_time: float = 0.0
    time_limit: int | None = None
    priority: int = 0
    nice: int = 0
    batch: bool = True
    requeue: bool = True
    restarts: int = 0
    dependency: str = ""
    reservation: str = ""
    array_job: str = ""
    """The job id of the array that this job is a task of; empty if it is no task."""
    throttle: int | None = None
    """The most tasks of its array that may run at once (`%N`)."""
    comment: str = ""
    admin_comment: str = ""
    hints: Hints = NO_HINTS
    number: str = ""
    """Slurm's own number of a running task of an array, which its id does not tell; empty where the id is it."""
    unmanageable: str = ""
    """Why only Slurm can place it (`it asks for GPUs per socket`); empty if a round can."""

    def with_run_time(self, run_time: float) -> Job:
        """Returns a copy with another run time."""
        copy = self._copied()
        object.__setattr__(copy, "run_time", run_time)
        return copy

    def as_submitted(self, request: Request, submit_time: float) -> Job:
        """Returns a copy with this original request and submit time."""
        copy = self._copied()
        object.__setattr__(copy, "original_request", request)
        object.__setattr__(copy, "submit_time", submit_time)
        return copy

    def _copied(self) -> Job:
        """Returns a copy in a third of the time that `dataclasses.replace` takes."""
        copy = object.__new__(Job)
        for set_field, value in zip(_SETTERS, _VALUES(self), strict=True):
            set_field(copy, value)
        return copy

    def is_queued(self, now: float) -> bool:
        """Whether it waits, and neither a hold nor a dependency nor a begin time keeps Slurm from starting it."""
        eligible = self.eligible_time is None or self.eligible_time <= now
        return self.state is JobState.PENDING and self.hold is Hold.NONE and eligible and not self.dependency

    @property
    def lasting(self) -> tuple[object, ...]:
        """All that is known of it but its run time, which changes at every poll while it runs."""
        return _LASTING(self)

    def differs_but_in_run_time(self, other: Job) -> bool:
        """Whether anything but the run time is not the same."""
        return self is not other and self.lasting != other.lasting

    @property
    def gpus(self) -> int:
        """GPUs that it has, or that it asks for if it has none."""
        held = self.allocations
        if len(held) == 1:  # most, and asked for many times in a round
            return held[0].resources.gpus
        return sum(allocation.resources.gpus for allocation in held) if held else self.original_request.gpus

    @property
    def gpu_type_held(self) -> str:
        """The type of its GPUs, or shards, on the first of its nodes; empty if it has none."""
        return self.allocations[0].gpu_type if self.allocations else ""

    @property
    def allocated(self) -> Resources:
        return sum((allocation.resources for allocation in self.allocations), Resources())

    @property
    def queue_key(self) -> tuple[float, int, int, JobId]:
        """Sort key of submission order: submit time, job number, task number (-1 without one), id.

        Ties go by number, so job 9 comes before job 10 and task 7_9 before 7_10.
        """
        if self.id.isdecimal():
            return self.submit_time, int(self.id), -1, self.id
        number, _, task = self.id.partition("_")
        return (
            self.submit_time,
            int(number) if number.isdecimal() else 0,
            int(task) if task.isdecimal() else -1,
            self.id,
        )

    @property
    def copy_of(self) -> JobId:
        """The forked job that this is a copy of: its array, if its hint has `fork`; empty for other jobs."""
        return self.array_job if self.hints.fork else ""

    @property
    def held_by_hook(self) -> bool:
        """Whether the submit hook holds it: at submission only, on a job that has run since, its mark does not tell
        whose hold it is."""
        return self.hold is Hold.USER and self.restarts == 0 and self.hints.held_by_hook

    @property
    def family(self) -> str:
        """The owner, and what those of his jobs have in common that train the same: the hinted model, else the name.

        Empty where neither tells that, as with `wrap`, a name that Slurm gives.
        """
        same = self.hints.model or ("" if self.name.lower() in _MEANINGLESS_NAMES else self.name)
        return f"{self.user} {same}" if same else ""

    @property
    def work(self) -> str:
        """Its name with digits as `#`; empty where the name tells nothing."""
        return work_of(self.name)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(allocation.node for allocation in self.allocations)

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        """The GPUs that it has, whole or in part: the node and the index of each."""
        return tuple((allocation.node, index) for allocation in self.allocations for index in allocation.indices)


_MEANINGLESS_NAMES: Final = frozenset({"", "wrap", "sbatch", "bash", "sh", "zsh", "interactive", "python", "python3"})
"""Names, in lower case, that jobs have which were given none."""


def work_of(name: str) -> str:
    """What names of runs of the same work have in common: each number of them as `#`; empty for a name that a job has
    which was given none."""
    return "" if name.lower() in _MEANINGLESS_NAMES else re.sub(r"[0-9]+", "#", name)


_FIELDS: Final = tuple(field.name for field in fields(Job))
_VALUES: Final = attrgetter(*_FIELDS)
_SETTERS: Final = tuple(vars(Job)[name].__set__ for name in _FIELDS)
_LASTING: Final = attrgetter(*(name for name in _FIELDS if name != "run_time"))
