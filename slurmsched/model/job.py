"""Jobs: what was asked, what stands, what is allocated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from slurmsched.model.hints import NO_HINTS, Hints
from slurmsched.model.node import Resources

JobId = str
"""A job as squeue names it: `123`, or `123_4` for a task of an array."""


class JobState(StrEnum):
    """The states that matter for a round; Slurm's own words stay in `Job.state_text`."""

    PENDING = "pending"
    RUNNING = "running"
    """Running or configuring: it has its resources."""
    COMPLETING = "completing"
    """Its processes are being ended; its resources are not free yet."""
    SUSPENDED = "suspended"
    FINISHED = "finished"


class Hold(StrEnum):
    """Who keeps a pending job from starting."""

    NONE = "none"
    USER = "user"
    ADMIN = "admin"
    REQUEUED = "requeued"
    """Requeued in held state (`scontrol requeuehold`)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for. Whole-job totals; memory in MiB per node.

    `gpus_per_node` is set where the job fixed it (`--gres`, `--gpus-per-node`); None leaves the split to the scheduler.
    `memory` 0 means nothing was said. `tasks` divides the CPUs: `cpus` is a multiple of it. `shards` are those of all
    `nodes` together.
    `pinned` are nodes that must all be part of the allocation (`--nodelist`).
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


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """What a job has, or shall have, on one node. `indices` are the GPUs there, known once it runs."""

    node: str
    resources: Resources
    gpu_type: str = ""
    indices: tuple[int, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job as one poll saw it. Times are unix seconds, None where Slurm has none; limits in seconds.

    `request` is what the owner asked for; `standing` what Slurm holds now, which differs once a round reshaped the job.
    `run_time` is the seconds of the current run only.
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
    """The array this job is a task of, as its own job number; empty otherwise."""
    throttle: int | None = None
    """`%N` of its array: at most so many tasks at once."""
    comment: str = ""
    admin_comment: str = ""
    hints: Hints = NO_HINTS
    unmanageable: str = ""
    """Why nobody but Slurm can place it (`it asks for GPUs per socket`), said behind its name; empty otherwise."""

    def with_run_time(self, run_time: float) -> Job:
        """The same job a moment later. (`dataclasses.replace` goes through `__init__`, at three times the cost.)"""
        later = object.__new__(Job)
        for name in _FIELDS:
            object.__setattr__(later, name, getattr(self, name))
        object.__setattr__(later, "run_time", run_time)
        return later

    @property
    def gpus(self) -> int:
        """GPUs it has, or asks for while it has none."""
        if self.allocations:
            return sum(share.resources.gpus for share in self.allocations)
        return self.original_request.gpus

    @property
    def allocated(self) -> Resources:
        return sum((share.resources for share in self.allocations), Resources())

    @property
    def queue_key(self) -> tuple[float, int, int, JobId]:
        """Sort key of submission order: submit time, job number, task number (-1 without one), id.

        Ties go by number, so job 9 comes before job 10 and task 7_9 before 7_10.
        """
        number, _, task = self.id.partition("_")
        return (
            self.submit_time,
            int(number) if number.isdecimal() else 0,
            int(task) if task.isdecimal() else -1,
            self.id,
        )

    @property
    def copy_of(self) -> JobId:
        """The forked job that this is a copy of: its array, where the hint says `fork`; empty for other jobs."""
        return self.array_job if self.hints.fork else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(share.node for share in self.allocations)


_FIELDS: Final = tuple(field.name for field in fields(Job))
