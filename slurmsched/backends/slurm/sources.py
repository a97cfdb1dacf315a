"""Where a poll comes from, and the source that is always there: Slurm's commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import NotUnderstoodError, why_unread
from slurmsched.backends.slurm.jobs import SeenJob, jobs_of
from slurmsched.backends.slurm.limits import limits_of
from slurmsched.backends.slurm.nodes import node_of
from slurmsched.backends.slurm.partitions import Configuration, partition_of, reservation_of
from slurmsched.backends.slurm.text_jobs import TextJobs
from slurmsched.model import Node, Partition, Reservation, SetAside

__all__ = ["CommandSource", "Source", "Surroundings", "View", "each", "lines"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What seldom changes, and a sentence on each thing that could not be read."""

    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...]
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """What was read. `surroundings` is None where they were not asked for.

    `oddities` are for everybody, one sentence each; `remarks` say to who asks how something was read.
    """

    nodes: Sequence[Node]
    jobs: Sequence[SeenJob]
    set_aside: Sequence[SetAside]
    surroundings: Surroundings | None = None
    oddities: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Source(Protocol):
    """Where polls come from."""

    @property
    def name(self) -> str:
        """`commands` or `pyslurm`."""

    def view(self, commands: Commands, configuration: Configuration, *, around: bool) -> View:
        """Nodes and jobs, and at least where `around` what is around them. Raises BackendError."""


@dataclass(slots=True)
class CommandSource:
    """scontrol's nodes, partitions and reservations, and squeue's jobs."""

    jobs: TextJobs = field(default_factory=TextJobs)
    name: str = field(default="commands", init=False)

    def view(self, commands: Commands, configuration: Configuration, *, around: bool) -> View:
        """See `Source`."""
        surroundings = None
        if around:
            exempt = configuration.preempt_exempt_time
            partitions, odd = each("partition", lines(commands, "partition"), lambda line: partition_of(line, exempt))
            reservations, odd_too = each("reservation", lines(commands, "reservation"), reservation_of)
            surroundings = Surroundings(tuple(partitions), tuple(reservations), (*odd, *odd_too))
        nodes, odd_nodes = each("node", lines(commands, "node", "-a", "-d", "-o"), node_of)
        records, unread = self.jobs.records(commands)
        jobs, unclear, longer = jobs_of(records, limits_of(node.total for node in nodes))
        return View(nodes, jobs, [*unread, *unclear], surroundings, (*odd_nodes, *longer))


def lines(commands: Commands, what: str, *options: str) -> list[str]:
    """What scontrol shows of this kind, one record a line. Raises BackendError."""
    shown = commands.read("scontrol", *(options or ("-a", "-o")), "show", what).splitlines()
    return [line for line in shown if line.startswith(f"{what.capitalize()}Name=")]


def each(what: str, found: Iterable[Any], read: Callable[[Any], T]) -> tuple[list[T], list[str]]:
    """What could be read, and a sentence on each of the others: a line of scontrol's, or values of pyslurm's."""
    made: list[T] = []
    oddities: list[str] = []
    for one in found:
        try:
            made.append(read(one))
        except (NotUnderstoodError, TypeError, ValueError, LookupError) as error:
            name = one.split(" ", 1)[0].partition("=")[2] if isinstance(one, str) else str(one.get("name"))
            oddities.append(f"{what} {name[:60]} is left out: {why_unread(error)}")
    return made, oddities
