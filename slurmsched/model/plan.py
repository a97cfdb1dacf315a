"""A plan: the operations that change the cluster, in order, each with its reason and its undo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slurmsched.model.job import JobId
from slurmsched.model.reasons import Reason


class Verb(StrEnum):
    """What an operation does; backends implement it."""

    HOLD = "hold"
    """Keep a pending job from starting."""
    UPDATE = "reshape"
    """Set what a pending job will get (a `JobSpec`)."""
    RELEASE = "release"
    """Let a held job start now; this also clears a begin time that a requeue has left."""
    NOTIFY = "notify"
    """Send a running job its checkpoint signal (`after`, a `CheckpointSignal`)."""
    REQUEUE = "requeue"
    """End a running job and put it back into the queue, held."""
    PRIORITIZE = "prioritize"
    """Set a pending job's nice value."""
    NOTE = "note"
    """Write a note into the job's AdminComment, where site tools show it."""
    WEIGH = "weigh"
    """Set a node's scheduling weight."""
    CONFIGURE = "configure"
    """Replace a configuration file and have Slurm read it; `subject` is its path."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a pending job will get. `cpus` and `memory` (MiB) are per node, `tasks` and `gpus` for the whole job.

    If `nodes` is empty the job is not pinned, and Slurm places it on `node_count` nodes. `gpus_per_node` is None if
    Slurm splits `gpus` itself; `cpus` is then the mean, rounded up. With `keeps_cpus` or `keeps_memory` the amount is
    only what Slurm will charge for the request as it stands.
    """

    nodes: tuple[str, ...]
    node_count: int
    gpus: int
    gpus_per_node: int | None
    gpu_type: str | None
    cpus: int
    memory: int
    tasks: int
    max_nodes: int | None = None
    """The most nodes, if that is more than `node_count`."""
    cpus_per_task: int = 0
    """0 in plans that were stored before it was known: then `cpus` are divided among the tasks."""
    keeps_cpus: bool = False
    keeps_memory: bool = False
    shards: int = 0
    """Of the whole job; 0 without, and in plans that were stored before it was known."""
    counts_nodes: bool = field(default=True, compare=False)
    """Whether Slurm is told the number of nodes. If not, it counts those in `nodes`: the owner may have named none."""
    narrowed: bool | None = field(default=None, compare=False)
    """Whether Slurm tests it on `nodes` alone; None for a start, which the backend narrows where it can, and in plans
    that were stored before it was known."""


OperationValue = str | int | JobSpec | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One change: `subject` (a job id, a node or a file) goes from `before` to `after`.

    It waits until the jobs in `gone` have released their resources, until those in `standing`, which the same plan
    starts or restarts, run, and until `lead` seconds have passed since the NOTIFY of the same subject in the same plan.
    """

    verb: Verb
    subject: str
    reason: Reason
    before: OperationValue = None
    after: OperationValue = None
    gone: tuple[JobId, ...] = ()
    lead: int = 0
    permitted: bool = True
    """False if the acting user lacks the right: the operation is shown but not tried."""
    standing: tuple[JobId, ...] = ()

    @property
    def sentence(self) -> str:
        what = self.subject if self.verb in (Verb.WEIGH, Verb.CONFIGURE) else f"job {self.subject}"
        return f"{what} {self.reason.sentence}"

    def undo(self) -> Operation | None:
        """Returns the operation that reverses this one; None for a signal, which cannot be taken back."""
        match self.verb:
            case Verb.NOTIFY:
                return None
            case Verb.HOLD | Verb.REQUEUE:
                return Operation(Verb.RELEASE, self.subject, self.reason, self.after, self.before)
            case Verb.RELEASE:
                return Operation(Verb.HOLD, self.subject, self.reason, self.after, self.before)
            case _:
                return replace(self, before=self.after, after=self.before, gone=(), lead=0, standing=())


class Result(StrEnum):
    """How an operation ended, as read back from Slurm and not from an exit code."""

    INTENDED = "intended"
    """Written to the journal, and not known to have happened."""
    DONE = "done"
    OVERTAKEN = "overtaken"
    """The job has ended, was cancelled or has changed meanwhile: nothing to do."""
    REFUSED = "refused"
    FAILED = "failed"
    BLOCKED = "blocked"
    """The mode, a pause or missing rights forbid it."""
    UNDONE = "undone"


class BlockCause(StrEnum):
    """What forbids an operation: a code for programs, stable."""

    MODE = "mode"
    PAUSED = "paused"
    DISABLED = "disabled"
    """The disable file exists."""
    OTHER_SCHEDULER = "other_scheduler"
    NO_PERMISSION = "no_permission"
    STOPPING = "stopping"
    RELOADED = "reloaded"
    """The settings were read again while the plan was open."""
    OUT_OF_TIME = "out_of_time"
    """Holds and starts take longer than a round may: the rest is planned anew."""


@dataclass(frozen=True, slots=True)
class Block:
    """Why operations may not be done: the cause, and a sentence for people."""

    cause: BlockCause
    sentence: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an operation: the `commands` that ran, and in `detail` Slurm's message if it refused. `cause` is
    what forbids a blocked one."""

    operation: Operation
    result: Result
    commands: tuple[str, ...] = ()
    detail: str = ""
    cause: BlockCause | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations, the least disruptive first.

    `deferred` are the targets that guards put off to a later round.
    """

    operations: tuple[Operation, ...]
    deferred: Mapping[JobId, Reason] = field(default_factory=dict)
