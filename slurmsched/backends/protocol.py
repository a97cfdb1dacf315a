"""The Backend protocol: reads a cluster and changes it. Implemented by slurm, simulated and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from slurmsched.model import AccountedRun, JobId, Operation, Outcome, Snapshot, SynschedError, Verb


class BackendError(SynschedError):
    """The cluster could not be read or changed; the message says what to do."""


class UnreachableError(BackendError):
    """slurmctld did not answer, or not in time: back off and try again."""


class NotPermittedError(BackendError):
    """The present user lacks the privilege that the operation needs."""


class Privilege(IntEnum):
    """What Slurm lets a user do; each level includes the lower ones."""

    NONE = 0
    OPERATOR = 1
    ADMINISTRATOR = 2
    SLURM_USER = 3
    """SlurmUser or root."""


REQUIRED_PRIVILEGES: dict[Verb, Privilege] = {
    Verb.HOLD: Privilege.OPERATOR,
    Verb.UPDATE: Privilege.OPERATOR,
    Verb.RELEASE: Privilege.OPERATOR,
    Verb.NOTIFY: Privilege.OPERATOR,
    Verb.REQUEUE: Privilege.OPERATOR,
    Verb.PRIORITIZE: Privilege.OPERATOR,
    Verb.NOTE: Privilege.ADMINISTRATOR,
    Verb.WEIGH: Privilege.SLURM_USER,
    Verb.CONFIGURE: Privilege.SLURM_USER,
}
"""The least privilege for each verb on jobs of other users (NOTE measured on 24.11)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that the scheduler acts as, and its privilege in Slurm.

    `unread` is why the privilege could not be read, in which case it counts as NONE; empty if it is known.
    """

    user: str
    privilege: Privilege
    unread: str = ""

    @property
    def may_schedule(self) -> bool:
        """Whether it may change jobs of all users, as starting what the submit hook holds needs."""
        return self.may(Verb.HOLD) and self.may(Verb.RELEASE)

    def may(self, verb: Verb) -> bool:
        """Whether Slurm lets this identity run the verb on any job."""
        return self.privilege >= REQUIRED_PRIVILEGES[verb]


@dataclass(slots=True)
class CallCounts:
    """Calls to the cluster: `polls` are whole observations, `reads` single queries, `writes` single changes."""

    polls: int = 0
    reads: int = 0
    writes: int = 0


IDLE_PERCENT: Final = 5.0
"""Mean use below which a GPU of a run was idle."""
CLOCK_TOLERANCE: Final = 60.0
"""Seconds by which the clocks of Slurm and of whoever measures its jobs may differ."""


@dataclass(frozen=True, slots=True)
class FinishedPage:
    """Runs that ended in a window of time, in the order of their ends; `unread` is how many more could not be read.

    `numbers` are the cluster's own numbers of their jobs, which those of an array's tasks do not tell.
    """

    runs: tuple[AccountedRun, ...] = ()
    unread: int = 0
    numbers: Mapping[JobId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """A digest of a job's batch script, or of the script's path where it may not be read, and the folder that the job
    runs in; empty if unknown."""

    script: str = ""
    folder: str = ""


class Backend(Protocol):
    """A cluster that can be read and changed. Not thread-safe: one round uses one backend."""

    @property
    def name(self) -> str:
        """`slurm (commands)`, `slurm (pyslurm)`, `simulated` or `recorded`."""

    @property
    def calls(self) -> CallCounts:
        """Calls since construction."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on how the last poll was read, one sentence each; usually none."""

    @property
    def operation_seconds(self) -> float:
        """Seconds that an operation takes at least, where the cluster limits the rate of changes; 0 without a limit.
        Known after the first poll."""

    def observe(self) -> Snapshot:
        """Polls the cluster. In the snapshot each job's `original_request` equals its `current_request`; the store
        knows the request from before a round updated it. Raises UnreachableError, BackendError."""

    def activity(self) -> str:
        """A text that changes when jobs are submitted, changed or end, or nodes come back; much cheaper than a poll.

        Empty if it cannot be told. Raises nothing.
        """

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        """The runs of jobs with GPUs that ended between these times (unix seconds), by the cluster's accounting.

        Raises BackendError, soon if accounting does not answer.
        """

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        """The script and folder of each of these jobs, empty where there is none, as of jobs that are gone.

        Some of many jobs may be left out, to be asked for again.

        Raises BackendError.
        """

    def identity(self) -> Identity:
        """The identity of this process, cached; a privilege that could not be read is read again some time later."""

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """The exact commands that `execute` would run, to be shown and recorded."""

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Carries out the operations in order, as one batch where that is cheaper. Returns one outcome each, in order.

        An outcome is what the cluster shows when it is read back; a refused operation does not raise. Raises
        UnreachableError when slurmctld does not answer: it is unknown then which operations took effect."""
