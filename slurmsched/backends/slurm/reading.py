"""One poll: all jobs by one query, all nodes by another; what seldom changes is kept for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from slurmsched.backends.protocol import BackendError, UnreachableError
from slurmsched.backends.slurm.associations import associations_of
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.jobs import jobs_of
from slurmsched.backends.slurm.limits import limits_of
from slurmsched.backends.slurm.nodes import node_of
from slurmsched.backends.slurm.partitions import (
    Configuration,
    configuration_of,
    partition_of,
    reservation_of,
)
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.backends.slurm.requests import Form
from slurmsched.backends.slurm.shards import counted_by_job
from slurmsched.model import Association, JobId, Node, Partition, Reservation, SetAside, Snapshot

__all__ = ["JobSource", "Poll", "Reader"]

_FRESH: Final = 60.0
"""Seconds for which partitions and reservations are not asked for again."""
_CONFIGURED: Final = 3600.0
"""Seconds for which slurmctld's settings are not asked for again."""

T = TypeVar("T")


class JobSource(Protocol):
    """Where all jobs come from."""

    @property
    def name(self) -> str:
        """`commands` or `pyslurm`."""

    def records(self, commands: Commands) -> tuple[list[JobRecord], list[SetAside]]:
        """Every job taken apart, and those that exist and make no sense. Raises BackendError."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll saw: the snapshot, and in which form each job's request stands."""

    snapshot: Snapshot
    forms: Mapping[JobId, Form]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...]
    oddities: tuple[str, ...]
    associations: tuple[Association, ...]


class Reader:
    """Reads a cluster. `clock` gives unix seconds; `associations` says whether to read the shares of users too."""

    def __init__(
        self, commands: Commands, jobs: JobSource, clock: Callable[[], float], associations: bool = False
    ) -> None:
        self._commands = commands
        self._jobs = jobs
        self._clock = clock
        self._associations = associations
        self._configuration: tuple[float, Configuration] | None = None
        self._surroundings: tuple[float, _Surroundings] | None = None

    def poll(self) -> Poll:
        """The whole cluster, now. Raises BackendError."""
        self._commands.calls.polls += 1
        time = self._clock()
        configuration, around = self.configuration(), self._around(time)
        lines = self._commands.read("scontrol", "-a", "-d", "-o", "show", "node").splitlines()
        nodes, odd_nodes = _each("node", (line for line in lines if line.startswith("NodeName=")), node_of)
        records, unread = self._jobs.records(self._commands)
        seen, unclear, longer = jobs_of(records, limits_of(nodes))
        jobs = tuple({one.job.id: one.job for one in seen}.values())
        counted = counted_by_job(nodes, jobs)
        snapshot = Snapshot(
            time=time,
            nodes=tuple(_reserved(counted, Reservation.active(around.reservations, time))),
            jobs=jobs,
            partitions=around.partitions,
            reservations=around.reservations,
            cluster=configuration.cluster,
            release=configuration.release,
            oddities=(*around.oddities, *odd_nodes, *longer),
            associations=around.associations,
            set_aside=(*unread, *unclear),
        )
        return Poll(snapshot, {one.job.id: one.form for one in seen})

    def configuration(self) -> Configuration:
        """slurmctld's settings, at most an hour old. Raises BackendError."""
        now = self._clock()
        if self._configuration is None or not 0 <= now - self._configuration[0] < _CONFIGURED:
            self._configuration = now, configuration_of(self._commands.read("scontrol", "show", "config"))
        return self._configuration[1]

    def forget(self) -> None:
        """Ask for everything again: the configuration has been changed."""
        self._configuration = self._surroundings = None

    def _around(self, now: float) -> _Surroundings:
        if self._surroundings is None or not 0 <= now - self._surroundings[0] < _FRESH:
            exempt = self.configuration().preempt_exempt_time
            partitions, odd = _each("partition", self._lines("partition"), lambda line: partition_of(line, exempt))
            reservations, odd_too = _each("reservation", self._lines("reservation"), reservation_of)
            shares, unread = self._shares() if self._associations else ((), ())
            oddities = (*odd, *odd_too, *unread)
            self._surroundings = now, _Surroundings(tuple(partitions), tuple(reservations), oddities, shares)
        return self._surroundings[1]

    def _shares(self) -> tuple[tuple[Association, ...], tuple[str, ...]]:
        """Without accounting nobody has shares, and rounds go on: all are equal then."""
        try:
            return associations_of(self._commands.read("sshare", "-a", "-P")), ()
        except UnreachableError:
            raise
        except BackendError as error:
            return (), (f"the shares of users are left out: {error}",)

    def _lines(self, what: str) -> list[str]:
        lines = self._commands.read("scontrol", "-a", "-o", "show", what).splitlines()
        return [line for line in lines if line.startswith(f"{what.capitalize()}Name=")]


def _each(what: str, lines: Iterable[str], read: Callable[[str], T]) -> tuple[list[T], list[str]]:
    found: list[T] = []
    oddities: list[str] = []
    for line in lines:
        try:
            found.append(read(line))
        except NotUnderstoodError as error:
            name = line.split(" ", 1)[0].partition("=")[2][:60]
            oddities.append(f"{what} {name} is left out: {error}")
    return found, oddities


def _reserved(nodes: Iterable[Node], active: Iterable[Reservation]) -> Iterable[Node]:
    """Slurm 22.05 does not say at the node which reservation holds it."""
    names = {node: reservation.name for reservation in active for node in reservation.nodes}
    for node in nodes:
        missing = not node.reservation and node.name in names
        yield replace(node, reservation=names[node.name]) if missing else node
