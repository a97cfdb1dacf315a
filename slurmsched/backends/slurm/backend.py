"""A Slurm cluster behind the Backend protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurmsched.backends.protocol import Calls, Identity
from slurmsched.backends.slurm.applying import Applying
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import UnsafeError
from slurmsched.backends.slurm.privileges import identity_of, process_user
from slurmsched.backends.slurm.reading import Reader
from slurmsched.backends.slurm.requests import PLAIN, Form
from slurmsched.backends.slurm.sources import Source
from slurmsched.backends.slurm.wording import worded
from slurmsched.model import JobId, Operation, Outcome, Snapshot, Verb

__all__ = ["SlurmBackend"]


class SlurmBackend:
    """Reads from a `Source`; changes go by commands alone.

    `clock` gives unix seconds; `user` is who acts; `associations` says whether to read the shares of users too.
    """

    def __init__(
        self,
        commands: Commands,
        source: Source,
        clock: Callable[[], float],
        user: Callable[[], str] = process_user,
        associations: bool = False,
    ) -> None:
        self._commands = commands
        self._source = source
        self._reader = Reader(commands, source, clock, associations)
        self._user = user
        self._forms: Mapping[JobId, Form] = {}
        self._identity: Identity | None = None
        self._remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`slurm (commands)` or `slurm (pyslurm)`: how the cluster is read."""
        return f"slurm ({self._source.name})"

    @property
    def calls(self) -> Calls:
        """Counted since construction: a read is one request, a write one line or command that changes something."""
        return self._commands.calls

    @property
    def remarks(self) -> tuple[str, ...]:
        """How the last poll was read."""
        return self._remarks

    def observe(self) -> Snapshot:
        """One poll: a query for all jobs, one for all nodes, and now and then what seldom changes.

        Raises UnreachableError, BackendError.
        """
        poll = self._reader.poll()
        self._forms, self._remarks = poll.forms, poll.remarks
        return poll.snapshot

    def identity(self) -> Identity:
        """Who acts. Raises UnreachableError, BackendError."""
        if self._identity is None:
            configuration = self._reader.configuration()
            self._identity = identity_of(self._commands, self._user(), configuration.slurm_user)
        return self._identity

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """The exact commands; none where they would not be safe to run."""
        try:
            return worded(operation, self._forms.get(operation.subject, PLAIN)).shown
        except UnsafeError:
            return ()

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Do these and read back; see the protocol. Raises UnreachableError, BackendError."""
        if not operations:
            return ()
        outcomes = Applying(self._commands, self._forms).execute(operations)
        if any(operation.verb is Verb.CONFIGURE for operation in operations):
            self._reader.forget()
        return outcomes
