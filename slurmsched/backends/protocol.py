"""Where a plan meets a cluster: one small protocol, three implementations (slurm, simulated, recorded)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from slurmsched.model import Operation, Outcome, Snapshot, SynschedError, Verb


class BackendError(SynschedError):
    """The cluster could not be read or changed; the message says what to do."""


class UnreachableError(BackendError):
    """Nobody answered, in time or at all: back off and try again."""


class NotPermittedError(BackendError):
    """We are not who we would have to be."""


class Privilege(IntEnum):
    """What Slurm lets an identity do; each level includes the ones before."""

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
"""The least privilege for each verb on other people's jobs (notes measured on 24.11)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who acts, and with which rights."""

    user: str
    privilege: Privilege

    def may(self, verb: Verb) -> bool:
        return self.privilege >= REQUIRED_PRIVILEGES[verb]


@dataclass(slots=True)
class CallCounts:
    """How often the cluster was asked and changed: `reads` are single requests, `polls` whole observations."""

    polls: int = 0
    reads: int = 0
    writes: int = 0


class Backend(Protocol):
    """A cluster that can be read and changed. Not thread-safe: one round uses one backend."""

    @property
    def name(self) -> str:
        """`slurm (commands)`, `slurm (pyslurm)`, `simulated` or `recorded`."""

    @property
    def calls(self) -> CallCounts:
        """Counted since construction."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """How the last poll was read where there is something to say of it, one sentence each."""

    def observe(self) -> Snapshot:
        """One poll. In the snapshot every job's `request` equals its `standing`: what it was before a round reshaped
        it, the store knows. Raises UnreachableError, BackendError."""

    def identity(self) -> Identity:
        """Who acts; asked once and kept."""

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """The exact commands `execute` would run, for people and for the record."""

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Do these, in order, as one batch where that is cheaper; one outcome each, in the same order.

        Outcomes are what the cluster showed when read back. Never raises for a single operation that is refused.
        Raises UnreachableError when nobody answers; what was done by then is not known, so read back."""
