"""Polls by pyslurm, and by commands what it does not tell.

Changes go by commands alone. pyslurm 25.11 says nothing and changes nothing where a nice of 0 is set, a list of nodes
is emptied or a number of nodes is given, and it cannot name a task of an array; 200 changes take 0.14 to 0.30 s through
it and 0.15 to 0.28 s as lines of one scontrol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slurmsched.backends.slurm import pyslurm_cluster, pyslurm_jobs
from slurmsched.backends.slurm.cluster import SlurmctldConfiguration, parse_node
from slurmsched.backends.slurm.command_source import (
    ClusterView,
    CommandSource,
    PartitionInfo,
    parse_each,
    read_lines,
    row_fields,
)
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import PyslurmFailedError, PyslurmUnavailableError, SlurmParseError
from slurmsched.backends.slurm.jobs import limits_from_totals, parse_jobs
from slurmsched.backends.slurm.pyslurm_poll import PyslurmRecords, PyslurmValues, read_pyslurm
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.backends.slurm.squeue_table import read_squeue
from slurmsched.model import Node, SetAsideJob

_MIN_PAUSE: Final = 60.0
_MAX_PAUSE: Final = 3600.0
"""Seconds for which pyslurm is not tried again after it ended without an answer."""
_REQUEST_COLUMNS: Final = (
    "TresPerJob", "TresPerNode", "TresPerSocket", "TresPerTask", "CpusPerTres", "MemPerTres", "TimeLimit",
)  # fmt: skip
"""What pyslurm does not tell of a request."""
_INVALID_VALUES: Final = "pyslurm's values make no sense"
_MAX_NAMED: Final = 5
"""So many jobs or nodes are named in a remark."""


@dataclass(frozen=True, slots=True)
class _Backoff:
    """Why pyslurm is not used, the unix second from which on it is, and how many seconds that takes."""

    reason: str
    retry_at: float
    pause: float
    incompatible: bool = False


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
    required: bool = False
    _commands: CommandSource = field(default_factory=CommandSource, init=False)
    _requests_cache: dict[str, tuple[tuple[object, ...], dict[str, str]]] = field(default_factory=dict, init=False)
    _has_read: bool = field(default=False, init=False)
    _backoff: _Backoff | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._commands.name if self._backoff is not None and self._backoff.incompatible else "pyslurm"

    def read(self, commands: Commands, configuration: SlurmctldConfiguration, *, with_partitions: bool) -> ClusterView:
        """See `Source`. Raises PyslurmUnavailableError where pyslurm is demanded and does not fit."""
        off = self._backoff
        if off is None or not off.retry_at - off.pause <= self.clock() < off.retry_at:
            try:
                polled = read_pyslurm(commands, ".".join(configuration.release.split(".")[:2]), self.mebibytes)
            except PyslurmUnavailableError as error:
                if self.required:
                    raise
                off = _Backoff(str(error), self.clock() + _MAX_PAUSE, _MAX_PAUSE, incompatible=True)
            except PyslurmFailedError as error:
                pause = _MIN_PAUSE if off is None or off.incompatible else min(2 * off.pause, _MAX_PAUSE)
                off = _Backoff(str(error), self.clock() + pause, pause)
            else:
                self._backoff, self._has_read = None, True
                return self._build_view(commands, polled, configuration)
        view = self._commands.read(commands, configuration, with_partitions=with_partitions)
        self._backoff = off
        if off.incompatible and not self._has_read:
            return replace(view, remarks=(*view.remarks, f"polls go by commands: {off.reason}"))
        warning = f"{off.reason}: polls go by commands, and pyslurm is tried again after {off.pause / 60:.0f} min"
        return replace(view, oddities=(*view.oddities, warning))

    def _build_view(
        self, commands: Commands, polled: PyslurmRecords, configuration: SlurmctldConfiguration
    ) -> ClusterView:
        exempt = configuration.preempt_exempt_time
        partitions, odd = parse_each(
            "partition", polled.partitions, lambda one: pyslurm_cluster.build_partition(one, exempt)
        )
        reservations, odd_too = parse_each("reservation", polled.reservations, pyslurm_cluster.build_reservation)
        partition_info = PartitionInfo(tuple(partitions), tuple(reservations), (*odd, *odd_too))
        reasons = {_job_number(job): _incomplete_reason(job) for job in polled.jobs}
        records = self._build_records(commands, polled, reasons)
        limits = limits_from_totals(pyslurm_cluster.node_totals(polled.nodes))
        jobs = {record.number: parse_jobs([record], limits) for record in records}
        reasons |= {number: _INVALID_VALUES for number, (_, unclear, _) in jobs.items() if unclear}
        read, unread = self._read_by_commands(commands, [job for job in polled.jobs if reasons[_job_number(job)]])
        jobs = {number: made for number, made in jobs.items() if not reasons[number]}
        jobs |= {record.number: parse_jobs([record], limits) for record in read}
        in_order = [jobs[number] for number in sorted(jobs, key=int)]
        nodes, odd_nodes, node_remarks = _build_nodes(commands, polled, [*records, *read], configuration.tracked_tres)
        return ClusterView(
            nodes,
            [job for clear, _, _ in in_order for job in clear],
            [*unread, *(one for _, unclear, _ in in_order for one in unclear)],
            partition_info,
            (*odd_nodes, *(sentence for _, _, longer in in_order for sentence in longer)),
            (
                f"pyslurm {polled.release} reads nodes, partitions, reservations and jobs ({polled.mebibytes} MiB)",
                *_group_by_reason("job", ((number, reason) for number, reason in reasons.items() if reason)),
                *node_remarks,
            ),
        )

    def _build_records(self, commands: Commands, polled: PyslurmRecords, reasons: dict[str, str]) -> list[JobRecord]:
        """The records of the jobs that are not in `why`, where those that make no sense are entered."""
        asked = self._read_requests(commands, [job for job in polled.jobs if not reasons[_job_number(job)]], reasons)
        known = (node for node in polled.nodes if "threads_per_core" not in node["unread"])
        threads = {node["name"]: node["threads_per_core"] or 1 for node in known}
        separate_tasks = pyslurm_jobs.tasks_with_records(polled.jobs)
        records: list[JobRecord] = []
        for job in polled.jobs:
            number = _job_number(job)
            if reasons[number] or number not in asked:
                continue
            try:
                tasks = separate_tasks.get(job["array_id"], ())
                records.append(pyslurm_jobs.build_record(job, asked[number], polled.users, threads, tasks))
            except Exception:  # whatever is odd about one job's values: that job alone goes by commands
                reasons[number] = _INVALID_VALUES
        return records

    def _read_requests(
        self, commands: Commands, jobs: Sequence[PyslurmValues], reasons: dict[str, str]
    ) -> dict[str, dict[str, str]]:
        """How each of these asks for GPUs, but those that squeue knows no more; what is not clear is entered in `why`.

        Every job is asked for, as its TRES name no GPUs where accounting does not track them: once for each request,
        but a waiting one at every poll where another type of GPU would not be seen.
        """
        by_number = {_job_number(job): job for job in jobs}
        keys = {number: pyslurm_jobs.request_key(job) for number, job in by_number.items()}
        self._requests_cache = {
            number: known for number, known in self._requests_cache.items() if keys.get(number) == known[0]
        }
        fresh = {
            number
            for number, job in by_number.items()
            if number not in self._requests_cache
            or pyslurm_jobs.may_change_gpu_type_unseen(job, self._requests_cache[number][1])
        }
        names = {number: _query_id(by_number[number]) for number in fresh}
        table = read_squeue(commands, names.values(), hidden_tasks=False)
        table |= read_squeue(commands, {names[number] for number in fresh - table.keys()})
        for number in fresh:
            self._requests_cache.pop(number, None)
            if number not in table:
                continue
            try:
                reasons[number] = pyslurm_jobs.row_mismatch(by_number[number], table[number])
                fields = row_fields(table[number])
            except Exception:  # as above: commands set the job aside if they cannot read it either
                reasons[number] = "squeue's values make no sense"
            if not reasons[number]:
                self._requests_cache[number] = keys[number], {name: fields[name] for name in _REQUEST_COLUMNS}
        return {number: known[1] for number, known in self._requests_cache.items() if not reasons[number]}

    def _read_by_commands(
        self, commands: Commands, jobs: Sequence[PyslurmValues]
    ) -> tuple[list[JobRecord], list[SetAsideJob]]:
        """These jobs as commands show them, and those of them that make no sense."""
        read, left = self._commands.jobs.read_records(commands, {_query_id(job) for job in jobs})
        numbers, names = {_job_number(job) for job in jobs}, {name for job in jobs for name in _possible_ids(job)}
        return [one for one in read if one.number in numbers], [one for one in left if one.job in names]


def _job_number(job: PyslurmValues) -> str:
    return str(job["id"])


def _query_id(job: PyslurmValues) -> str:
    """The number under which squeue shows it: its array's, or its heterogeneous job's."""
    return str(job["array_id"] or job["heterogeneous_id"] or job["id"])


def _possible_ids(job: PyslurmValues) -> tuple[str, ...]:
    """As it may be named where it is set aside."""
    return (
        _job_number(job),
        f"{job['array_id']}_{job['array_task_id'] or 0}",
        f"{_query_id(job)}+{job['heterogeneous_offset'] or 0}",
    )


def _incomplete_reason(job: PyslurmValues) -> str:
    try:
        return pyslurm_jobs.incomplete_reason(job)
    except Exception:  # as above
        return _INVALID_VALUES


def _build_node(values: PyslurmValues, taken: Iterable[int], tracked: Collection[str]) -> Node | None:
    try:
        return pyslurm_cluster.build_node(values, taken, tracked)
    except (SlurmParseError, TypeError, ValueError, LookupError):
        return None  # scontrol's line may make sense, or is left out by name


def _build_nodes(
    commands: Commands, polled: PyslurmRecords, records: Iterable[JobRecord], tracked: Collection[str]
) -> tuple[list[Node], list[str], list[str]]:
    """The nodes in Slurm's order, what could not be read, and which are read by commands."""
    taken = pyslurm_cluster.allocated_devices(records)
    by_name = {values["name"]: _build_node(values, taken.get(values["name"], ()), tracked) for values in polled.nodes}
    missing = [name for name, node in by_name.items() if node is None]
    odd: list[str] = []
    if missing:
        shown = read_lines(
            commands, "node", "-a", "-d", "-o"
        )  # all: of some that it is asked for one may be gone by now
        wanted = {f"NodeName={name}" for name in missing}
        read, odd = parse_each("node", (line for line in shown if line.split(" ", 1)[0] in wanted), parse_node)
        by_name |= {node.name: node for node in read}
    remarks = _group_by_reason(
        "node", ((name, "pyslurm does not show which of its GPUs are taken") for name in missing)
    )
    return [node for node in by_name.values() if node is not None], odd, remarks


def _group_by_reason(kind: str, reasons: Iterable[tuple[str, str]]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        by_reason.setdefault(reason, []).append(name)
    remarks = []
    for reason, names in by_reason.items():
        more = ", ..." if len(names) > _MAX_NAMED else ""
        one = f"{kind} is" if len(names) == 1 else f"{kind}s are"
        remarks.append(f"{len(names)} {one} read by commands, as {reason}: {', '.join(names[:_MAX_NAMED])}{more}")
    return remarks
