"""A plan: what has to be done to the cluster, in order, each step with its reason and its undo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slurmsched.model.job import JobId
from slurmsched.model.reasons import Reason


class Verb(StrEnum):
    """What an operation does. Backends know how."""

    HOLD = "hold"
    """Keep a pending job from starting."""
    UPDATE = "reshape"
    """Set what a pending job will get (`Shape`)."""
    RELEASE = "release"
    """Let a held job start, now: a begin time left by a requeue is cleared."""
    NOTIFY = "notify"
    """Send a running job its checkpoint signal (`signal`, a `CheckpointSignal`)."""
    REQUEUE = "requeue"
    """End a running job and put it back into the queue, held."""
    PRIORITIZE = "prioritize"
    """Set a pending job's `nice`."""
    NOTE = "note"
    """Write our note where site tools show it (`text`)."""
    WEIGH = "weigh"
    """Set a node's scheduling `weight`."""
    CONFIGURE = "configure"
    """Replace a configuration file (`text`) and have Slurm read it; `subject` is its path."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a pending job will be given. `cpus` and `memory` (MiB) are per node, `tasks` for the whole job.

    With `nodes` empty the job is not pinned and `node_count` says over how many nodes Slurm may put it.
    `gpus_per_node` holds one number for every node where the split is even, None where Slurm splits `gpus` itself.
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
    """Most nodes, where that is more than `node_count`."""


OperationValue = str | int | JobSpec | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One change: `subject` (a job id, a node, a file) goes from `before` to `after`.

    It waits until the jobs in `gone` have left their resources, and until `lead` seconds have passed since the
    NOTIFY of the same subject in the same plan.
    """

    verb: Verb
    subject: str
    reason: Reason
    before: OperationValue = None
    after: OperationValue = None
    gone: tuple[JobId, ...] = ()
    lead: int = 0
    permitted: bool = True
    """False where the acting identity may not do this: shown, never tried."""

    @property
    def sentence(self) -> str:
        what = self.subject if self.verb in (Verb.WEIGH, Verb.CONFIGURE) else f"job {self.subject}"
        return f"{what} {self.reason.sentence}"

    def undo(self) -> Operation | None:
        """The operation that takes this one back, None where nothing can (a signal is sent)."""
        match self.verb:
            case Verb.NOTIFY:
                return None
            case Verb.HOLD | Verb.REQUEUE:
                return Operation(Verb.RELEASE, self.subject, self.reason, self.after, self.before)
            case Verb.RELEASE:
                return Operation(Verb.HOLD, self.subject, self.reason, self.after, self.before)
            case _:
                return replace(self, before=self.after, after=self.before, gone=(), lead=0)


class Result(StrEnum):
    """How an operation ended, as read back, never as an exit code claims."""

    INTENDED = "intended"
    """Journalled, and not known to have happened."""
    DONE = "done"
    OVERTAKEN = "overtaken"
    """The job ended, was cancelled or had changed meanwhile: nothing to do."""
    REFUSED = "refused"
    FAILED = "failed"
    BLOCKED = "blocked"
    """The mode, a pause or missing rights forbid it."""
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an operation: `commands` as they were run, `detail` Slurm's own words where it refused."""

    operation: Operation
    result: Result
    commands: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations, least disruptive first. A value: print it, store it, diff it, discard it.

    `deferred` are targets that guards keep for a later round.
    """

    operations: tuple[Operation, ...]
    deferred: Mapping[JobId, Reason] = field(default_factory=dict)
