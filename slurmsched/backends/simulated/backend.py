"""The Backend protocol over a virtual cluster and a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.backends.protocol import Calls, Identity, Privilege, UnreachableError
from slurmsched.backends.simulated.agenda import Event
from slurmsched.backends.simulated.clock import VirtualClock
from slurmsched.backends.simulated.cluster import Cluster
from slurmsched.backends.simulated.disturbances import CALM, Disturbances
from slurmsched.backends.simulated.job import Submission
from slurmsched.backends.simulated.operations import perform, wording
from slurmsched.model import JobId, Operation, Outcome, Snapshot

__all__ = ["SimulatedBackend"]

_SILENCE = "the simulated slurmctld does not answer: wait and try again"


class SimulatedBackend:
    """Reads and changes a `Cluster`, which catches up with the clock whenever it is asked.

    What is released starts at once if it fits, before the next poll; `files` are the configuration files written.
    """

    name = "simulated"
    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        cluster: Cluster,
        clock: VirtualClock,
        identity: Identity | None = None,
        disturbances: Disturbances = CALM,
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self.calls = Calls()
        self.files: dict[str, str] = {}
        self._identity = identity or Identity("slurm", Privilege.SLURM_USER)
        self._disturbances = disturbances
        self._executions = 0
        for at, disturbance in disturbances.timed:
            cluster.agenda.enter(Event(at, disturbance.kind, disturbance.subject))

    def observe(self) -> Snapshot:
        """One poll at the clock's time. Raises UnreachableError for a poll that is to stay unanswered."""
        self.calls.polls += 1
        self.calls.reads += 2
        if self.calls.polls in self._disturbances.unanswered_polls:
            raise UnreachableError(_SILENCE)
        self.cluster.advance(self.clock.now())
        return self.cluster.snapshot()

    def identity(self) -> Identity:
        """As given at construction: SlurmUser by default."""
        return self._identity

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """What is done, in one line that begins with `simulated`."""
        return wording(operation)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Do these in order at the clock's time. Raises UnreachableError for an execution that is to be broken off."""
        self.cluster.advance(self.clock.now())
        self._executions += 1
        for disturbance in self._disturbances.before_execution.get(self._executions, ()):
            self.cluster.agenda.enter(Event(self.cluster.now, disturbance.kind, disturbance.subject))
        self.cluster.advance(self.clock.now())
        answered = self._disturbances.broken_off.get(self._executions, len(operations))
        outcomes = tuple(self._perform(operation) for operation in operations[:answered])
        self.cluster.schedule()
        if answered < len(operations):
            raise UnreachableError(_SILENCE)
        self.calls.reads += 1
        return outcomes

    def submit(self, submission: Submission, *, tasks: int = 0) -> JobId:
        """Like sbatch at the clock's time, with `tasks` as an array; the cluster's hook sees it."""
        self.cluster.advance(self.clock.now())
        job = self.cluster.submit(submission, tasks=tasks)
        self.cluster.schedule()
        return job

    def _perform(self, operation: Operation) -> Outcome:
        self.calls.writes += 1
        return perform(self.cluster, self.files, self._identity, operation)
