"""Polls by pyslurm, and by commands what it does not tell.

Changes go by commands alone. pyslurm 25.11 says nothing and changes nothing where a nice of 0 is set, a list of nodes
is emptied or a number of nodes is given, and it cannot name a task of an array; 200 changes take 0.14 to 0.30 s through
it and 0.15 to 0.28 s as lines of one scontrol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slurmsched.backends.slurm import pyslurm_jobs, pyslurm_nodes
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import NotUnderstoodError, PyslurmEndedError, PyslurmError
from slurmsched.backends.slurm.jobs import jobs_of
from slurmsched.backends.slurm.limits import limits_of
from slurmsched.backends.slurm.nodes import node_of
from slurmsched.backends.slurm.partitions import Configuration
from slurmsched.backends.slurm.pyslurm_poll import PyslurmPoll, Values, poll
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.backends.slurm.sources import CommandSource, Surroundings, View, each, lines
from slurmsched.backends.slurm.table import rows
from slurmsched.backends.slurm.text_jobs import fields_of_row
from slurmsched.model import Node, SetAside

__all__ = ["PyslurmSource"]

_FIRST_PAUSE: Final = 60.0
_LAST_PAUSE: Final = 3600.0
"""Seconds for which pyslurm is not tried again after it ended without an answer."""
_ASKED: Final = (
    "TresPerJob", "TresPerNode", "TresPerSocket", "TresPerTask", "CpusPerTres", "MemPerTres", "TimeLimit",
)  # fmt: skip
"""What pyslurm does not tell of a request."""
_NO_SENSE: Final = "pyslurm's values make no sense"
_NAMED: Final = 5
"""So many jobs or nodes are named in a remark."""


@dataclass(frozen=True, slots=True)
class _Off:
    """Why pyslurm is not used, the unix second from which on it is, and how many seconds that takes."""

    why: str
    again: float
    pause: float
    unfit: bool = False


@dataclass(slots=True)
class PyslurmSource:
    """pyslurm in a process of its own, and commands for single jobs and nodes of which it does not tell all.

    Where it ends before it has answered the poll goes by commands, and so do those of the next minute, then of two,
    up to an hour. That is said, and counts, only if commands get an answer. `clock` gives unix seconds, `mebibytes` is
    the most it may have. Where it does not fit, `demanded` says that this is an error; otherwise it is tried again
    after an hour.
    """

    clock: Callable[[], float]
    mebibytes: int
    demanded: bool = False
    _commands: CommandSource = field(default_factory=CommandSource, init=False)
    _asked: dict[str, tuple[tuple[object, ...], dict[str, str]]] = field(default_factory=dict, init=False)
    _has_read: bool = field(default=False, init=False)
    _off: _Off | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._commands.name if self._off is not None and self._off.unfit else "pyslurm"

    def view(self, commands: Commands, configuration: Configuration, *, around: bool) -> View:
        """See `Source`. Raises PyslurmError where pyslurm is demanded and does not fit."""
        off = self._off
        if off is None or not off.again - off.pause <= self.clock() < off.again:
            try:
                found = poll(commands, ".".join(configuration.release.split(".")[:2]), self.mebibytes)
            except PyslurmError as error:
                if self.demanded:
                    raise
                off = _Off(str(error), self.clock() + _LAST_PAUSE, _LAST_PAUSE, unfit=True)
            except PyslurmEndedError as error:
                pause = _FIRST_PAUSE if off is None or off.unfit else min(2 * off.pause, _LAST_PAUSE)
                off = _Off(str(error), self.clock() + pause, pause)
            else:
                self._off, self._has_read = None, True
                return self._seen(commands, found, configuration)
        view = self._commands.view(commands, configuration, around=around)
        self._off = off
        if off.unfit and not self._has_read:
            return replace(view, remarks=(*view.remarks, f"polls go by commands: {off.why}"))
        told = f"{off.why}: polls go by commands, and pyslurm is tried again after {off.pause / 60:.0f} min"
        return replace(view, oddities=(*view.oddities, told))

    def _seen(self, commands: Commands, found: PyslurmPoll, configuration: Configuration) -> View:
        exempt = configuration.preempt_exempt_time
        partitions, odd = each("partition", found.partitions, lambda one: pyslurm_nodes.partition_of(one, exempt))
        reservations, odd_too = each("reservation", found.reservations, pyslurm_nodes.reservation_of)
        surroundings = Surroundings(tuple(partitions), tuple(reservations), (*odd, *odd_too))
        why = {_number(job): _why_by_commands(job) for job in found.jobs}
        records = self._records(commands, found, why)
        limits = limits_of(pyslurm_nodes.totals_of(found.nodes))
        jobs = {record.number: jobs_of([record], limits) for record in records}
        why |= {number: _NO_SENSE for number, (_, unclear, _) in jobs.items() if unclear}
        read, unread = self._by_commands(commands, [job for job in found.jobs if why[_number(job)]])
        jobs = {number: made for number, made in jobs.items() if not why[number]}
        jobs |= {record.number: jobs_of([record], limits) for record in read}
        in_order = [jobs[number] for number in sorted(jobs, key=int)]
        nodes, odd_nodes, node_remarks = _nodes(commands, found, [*records, *read], configuration.tracked)
        return View(
            nodes,
            [job for clear, _, _ in in_order for job in clear],
            [*unread, *(one for _, unclear, _ in in_order for one in unclear)],
            surroundings,
            (*odd_nodes, *(sentence for _, _, longer in in_order for sentence in longer)),
            (
                f"pyslurm {found.release} reads nodes, partitions, reservations and jobs ({found.mebibytes} MiB)",
                *_grouped("job", ((number, reason) for number, reason in why.items() if reason)),
                *node_remarks,
            ),
        )

    def _records(self, commands: Commands, found: PyslurmPoll, why: dict[str, str]) -> list[JobRecord]:
        """The records of the jobs that are not in `why`, where those that make no sense are entered."""
        asked = self._requests(commands, [job for job in found.jobs if not why[_number(job)]], why)
        told = (node for node in found.nodes if "threads_per_core" not in node["unread"])
        threads = {node["name"]: node["threads_per_core"] or 1 for node in told}
        apart = pyslurm_jobs.own_tasks(found.jobs)
        records: list[JobRecord] = []
        for job in found.jobs:
            number = _number(job)
            if why[number] or number not in asked:
                continue
            try:
                tasks = apart.get(job["array_id"], ())
                records.append(pyslurm_jobs.record_of(job, asked[number], found.users, threads, tasks))
            except Exception:  # whatever is odd about one job's values: that job alone goes by commands
                why[number] = _NO_SENSE
        return records

    def _requests(self, commands: Commands, jobs: Sequence[Values], why: dict[str, str]) -> dict[str, dict[str, str]]:
        """How each of these asks for GPUs, but those that squeue knows no more; what is not clear is entered in `why`.

        Every job is asked for, as its TRES name no GPUs where accounting does not track them: once for each request,
        but a waiting one at every poll where another type of GPU would not be seen.
        """
        by_number = {_number(job): job for job in jobs}
        keys = {number: pyslurm_jobs.request_key(job) for number, job in by_number.items()}
        self._asked = {number: known for number, known in self._asked.items() if keys.get(number) == known[0]}
        fresh = {
            number
            for number, job in by_number.items()
            if number not in self._asked or pyslurm_jobs.may_change_unseen(job, self._asked[number][1])
        }
        names = {number: _name(by_number[number]) for number in fresh}
        table = rows(commands, names.values(), hidden=False)
        table |= rows(commands, {names[number] for number in fresh - table.keys()})
        for number in fresh:
            self._asked.pop(number, None)
            if number not in table:
                continue
            try:
                why[number] = pyslurm_jobs.why_not_of_row(by_number[number], table[number])
                fields = fields_of_row(table[number])
            except Exception:  # as above: commands set the job aside if they cannot read it either
                why[number] = "squeue's values make no sense"
            if not why[number]:
                self._asked[number] = keys[number], {name: fields[name] for name in _ASKED}
        return {number: known[1] for number, known in self._asked.items() if not why[number]}

    def _by_commands(self, commands: Commands, jobs: Sequence[Values]) -> tuple[list[JobRecord], list[SetAside]]:
        """These jobs as commands show them, and those of them that make no sense."""
        read, left = self._commands.jobs.records(commands, {_name(job) for job in jobs})
        numbers, names = {_number(job) for job in jobs}, {name for job in jobs for name in _names(job)}
        return [one for one in read if one.number in numbers], [one for one in left if one.job in names]


def _number(job: Values) -> str:
    return str(job["id"])


def _name(job: Values) -> str:
    """The number under which squeue shows it: its array's, or its heterogeneous job's."""
    return str(job["array_id"] or job["heterogeneous_id"] or job["id"])


def _names(job: Values) -> tuple[str, ...]:
    """As it may be named where it is set aside."""
    return (
        _number(job),
        f"{job['array_id']}_{job['array_task_id'] or 0}",
        f"{_name(job)}+{job['heterogeneous_offset'] or 0}",
    )


def _why_by_commands(job: Values) -> str:
    try:
        return pyslurm_jobs.why_by_commands(job)
    except Exception:  # as above
        return _NO_SENSE


def _node(values: Values, taken: Iterable[int], tracked: Collection[str]) -> Node | None:
    try:
        return pyslurm_nodes.node_of(values, taken, tracked)
    except (NotUnderstoodError, TypeError, ValueError, LookupError):
        return None  # scontrol's line may make sense, or is left out by name


def _nodes(
    commands: Commands, found: PyslurmPoll, records: Iterable[JobRecord], tracked: Collection[str]
) -> tuple[list[Node], list[str], list[str]]:
    """The nodes in Slurm's order, what could not be read, and which are read by commands."""
    taken = pyslurm_nodes.devices_of(records)
    by_name = {values["name"]: _node(values, taken.get(values["name"], ()), tracked) for values in found.nodes}
    missing = [name for name, node in by_name.items() if node is None]
    odd: list[str] = []
    if missing:
        shown = lines(commands, "node", "-a", "-d", "-o")  # all: of some that it is asked for one may be gone by now
        wanted = {f"NodeName={name}" for name in missing}
        read, odd = each("node", (line for line in shown if line.split(" ", 1)[0] in wanted), node_of)
        by_name |= {node.name: node for node in read}
    remarks = _grouped("node", ((name, "pyslurm does not show which of its GPUs are taken") for name in missing))
    return [node for node in by_name.values() if node is not None], odd, remarks


def _grouped(what: str, found: Iterable[tuple[str, str]]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in found:
        by_reason.setdefault(reason, []).append(name)
    told = []
    for reason, names in by_reason.items():
        more = ", ..." if len(names) > _NAMED else ""
        one = f"{what} is" if len(names) == 1 else f"{what}s are"
        told.append(f"{len(names)} {one} read by commands, as {reason}: {', '.join(names[:_NAMED])}{more}")
    return told
