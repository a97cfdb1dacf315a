"""One poll: nodes and jobs as the source shows them; what seldom changes is kept for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.backends.protocol import BackendError, UnreachableError
from slurmsched.backends.slurm.associations import associations_of
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.partitions import Configuration, configuration_of
from slurmsched.backends.slurm.privileges import operators_of
from slurmsched.backends.slurm.requests import Form
from slurmsched.backends.slurm.shards import counted_by_job
from slurmsched.backends.slurm.sources import Source, Surroundings
from slurmsched.model import Association, JobId, Node, Reservation, Snapshot

__all__ = ["Poll", "Reader"]

_FRESH: Final = 60.0
"""Seconds for which partitions and reservations are not asked for again."""
_CONFIGURED: Final = 3600.0
"""Seconds for which slurmctld's settings are not asked for again."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll saw: the snapshot, and in which form each job's request stands."""

    snapshot: Snapshot
    forms: Mapping[JobId, Form]
    remarks: tuple[str, ...] = ()
    """How it was read, for who asks, one sentence each."""


class Reader:
    """Reads a cluster. `clock` gives unix seconds; `associations` says whether to read the shares of users too."""

    def __init__(
        self, commands: Commands, source: Source, clock: Callable[[], float], associations: bool = False
    ) -> None:
        self._commands = commands
        self._source = source
        self._clock = clock
        self._associations = associations
        self._configuration: tuple[float, Configuration] | None = None
        self._surroundings: tuple[float, Surroundings] | None = None
        self._shares: tuple[float, tuple[Association, ...], tuple[str, ...]] | None = None
        self._operators: tuple[float, frozenset[str]] | None = None

    def poll(self) -> Poll:
        """The whole cluster, now. Raises BackendError."""
        self._commands.calls.polls += 1
        time, configuration = self._clock(), self.configuration()
        known = self._surroundings
        view = self._source.view(
            self._commands, configuration, around=known is None or not 0 <= time - known[0] < _FRESH
        )
        if view.surroundings is not None:
            known = self._surroundings = time, view.surroundings
        around = known[1] if known else Surroundings((), ())
        shares, unread = self._associated(time)
        jobs = tuple({one.job.id: one.job for one in view.jobs}.values())
        counted = counted_by_job(view.nodes, jobs)
        snapshot = Snapshot(
            time=time,
            nodes=tuple(_reserved(counted, Reservation.active(around.reservations, time))),
            jobs=jobs,
            partitions=around.partitions,
            reservations=around.reservations,
            cluster=configuration.cluster,
            release=configuration.release,
            oddities=(*around.oddities, *unread, *view.oddities),
            associations=shares,
            set_aside=tuple(view.set_aside),
            private_data=configuration.private_data,
            operators=self._privileged(configuration),
        )
        return Poll(snapshot, {one.job.id: one.form for one in view.jobs}, view.remarks)

    def configuration(self) -> Configuration:
        """slurmctld's settings, at most an hour old. Raises BackendError."""
        now = self._clock()
        if self._configuration is None or not 0 <= now - self._configuration[0] < _CONFIGURED:
            self._configuration = now, configuration_of(self._commands.read("scontrol", "show", "config"))
        return self._configuration[1]

    def forget(self) -> None:
        """Ask for everything again: the configuration has been changed."""
        self._configuration = self._surroundings = self._shares = self._operators = None

    def _privileged(self, configuration: Configuration) -> frozenset[str]:
        """Who sees what PrivateData hides, at most an hour old; nobody is asked for where it hides nothing."""
        if not configuration.private_data:
            return frozenset()
        now = self._clock()
        if self._operators is None or not 0 <= now - self._operators[0] < _CONFIGURED:
            self._operators = now, operators_of(self._commands, configuration.slurm_user)
        return self._operators[1]

    def _associated(self, now: float) -> tuple[tuple[Association, ...], tuple[str, ...]]:
        """The shares, a minute old at most. Without accounting nobody has any, and rounds go on: all are equal then."""
        if not self._associations:
            return (), ()
        if self._shares is None or not 0 <= now - self._shares[0] < _FRESH:
            try:
                self._shares = now, associations_of(self._commands.read("sshare", "-a", "-P")), ()
            except UnreachableError:
                raise
            except BackendError as error:
                self._shares = now, (), (f"the shares of users are left out: {error}",)
        return self._shares[1:]


def _reserved(nodes: Iterable[Node], active: Iterable[Reservation]) -> Iterable[Node]:
    """Slurm 22.05 does not say at the node which reservation holds it, and others behind a text that people write."""
    names = {node: reservation.name for reservation in active for node in reservation.nodes}
    for node in nodes:
        missing = not node.reservation and node.name in names
        yield replace(node, reservation=names[node.name]) if missing else node
