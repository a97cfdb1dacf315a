"""Polls by Slurm's commands: nodes from scontrol, jobs from squeue's table and the details of `scontrol show job`.

Fields are never searched for in text that a user wrote. A job's values are columns of a table of fixed width
(`squeue_table`); the details that the table lacks are parsed by a grammar from the job's record (`job_details`), once
for each run. Jobs take one command per poll unless one has started or some tasks of a waiting array have job records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from slurmsched.backends.slurm.cluster import SlurmctldConfiguration, parse_partition, parse_reservation
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError, unread_reason
from slurmsched.backends.slurm.job_details import JobDetails, read_details
from slurmsched.backends.slurm.jobs import (
    NO_LIMITS,
    ClusterLimits,
    ParsedJob,
    is_hooked,
    limits_from_totals,
    parse_jobs,
    parse_state,
)
from slurmsched.backends.slurm.operation_commands import checked_job_id
from slurmsched.backends.slurm.records import (
    JobRecord,
    fewest_nodes,
    or_empty,
    parse_count,
    parse_mebibytes,
    parse_tres,
)
from slurmsched.backends.slurm.sbatch_options import sbatch_options
from slurmsched.backends.slurm.squeue_table import ID_COLUMNS, SqueueRow, read_squeue
from slurmsched.backends.slurm.unchanged import ParsedNodes, ParsedRow, ParsedRows
from slurmsched.model import Job, JobId, JobState, Node, Partition, Reservation, SetAsideJob

T = TypeVar("T")

_SCONTROL_NAMES: Final = {
    "NumCPUs": "NumCPUs",
    "NumTasks": "NumTasks",
    "NTPerNode": "NtasksPerN:B:S:C",
    "ReqNodes": "ReqNodeList",
    "ExcNodes": "ExcNodeList",
    "Feature": "Features",
    "OverSubscribe": "OverSubscribe",
    "Partition": "Partition",
    "Reservation": "Reservation",
    "Dependency": "Dependency",
    "BatchFlag": "BatchFlag",
    "Requeue": "Requeue",
    "RestartCnt": "Restarts",
    "SubmitTime": "SubmitTime",
    "EligibleTime": "EligibleTime",
    "StartTime": "StartTime",
    "EndTime": "EndTime",
    "TimeUsed": "RunTime",
    "TimeLimit": "TimeLimit",
    "tres-alloc": "TRES",
    "tres-per-job": "TresPerJob",
    "tres-per-node": "TresPerNode",
    "tres-per-socket": "TresPerSocket",
    "tres-per-task": "TresPerTask",
    "cpus-per-tres": "CpusPerTres",
    "mem-per-tres": "MemPerTres",
    "MinCPUs": "MinCPUsNode",
    **{option.column: option.column for option in sbatch_options() if option.column},
}
"""squeue's columns and scontrol's names of the same fields; those that only show an option keep squeue's."""

_NO_TEXT: Final = "(null)"
"""squeue's text for an empty comment; other words for 'empty' may be a user's comment."""
_NO_VALUE: Final = "4294967294"
"""Slurm's NO_VAL, which squeue shows as the number of tasks of cancelled jobs."""

_RUN: Final = ("SubmitTime", "StartTime", "RestartCnt", "NodeList", "tres-alloc", "MinMemory")
_REQUEST: Final = ("SubmitTime", "RestartCnt", "tres-alloc", "MinMemory", "NumCPUs")
_WITH_NODES: Final = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Partitions, and a warning for each one that could not be read."""

    partitions: tuple[Partition, ...]
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one poll read. `partition_info` is None if it was not requested.

    `oddities` are warnings, one sentence each; `remarks` tell how something was read, shown on request only.
    """

    nodes: Sequence[Node]
    jobs: Sequence[ParsedJob]
    set_aside: Sequence[SetAsideJob]
    partition_info: PartitionInfo | None = None
    oddities: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()


class PollSource(Protocol):
    """Reads a cluster for one poll."""

    @property
    def name(self) -> str:
        """`commands` or `pyslurm`."""

    def read(self, commands: Commands, configuration: SlurmctldConfiguration, *, with_partitions: bool) -> ClusterView:
        """Nodes, jobs and reservations; with `with_partitions` also partitions. Raises BackendError."""


@dataclass(frozen=True, slots=True)
class _CompleteRow:
    """A row with its details, where it needs any, its array's throttle, and why its details cannot be read."""

    row: SqueueRow
    details: JobDetails | None
    throttle: int | None
    unreadable: str | None


@dataclass(slots=True)
class CommandJobReader:
    """Reads jobs by `squeue` and `scontrol`. Details of a run are cached until the job leaves the queue."""

    name: str = field(default="commands", init=False)
    _known: dict[str, tuple[tuple[str, ...], JobDetails]] = field(default_factory=dict, init=False)
    _unreadable: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict, init=False)
    _parsed: ParsedRows = field(default_factory=ParsedRows, init=False)

    def read_records(
        self,
        commands: Commands,
        ids: Iterable[str] | None = None,
        detailed: Set[str] | None = None,
        own: Iterable[str] = (),
    ) -> tuple[list[JobRecord], list[SetAsideJob]]:
        """The records of all jobs and the jobs that cannot be read; with `ids` only those of these numbers.

        `ids` are numbers of jobs, arrays or heterogeneous jobs, `own` those of tasks of arrays with records of their
        own. With `detailed` only the records of these have allocations and a memory request that is not in doubt, and
        none has its array's throttle. Raises BackendError.
        """
        table = read_squeue(commands, ids, records=own)

        def needs_details(row: SqueueRow) -> bool:
            named = detailed is None or any(row.value(column) in detailed for column in ID_COLUMNS)
            return named and not row.too_long and _needs_details(row)

        needing = {number for number, row in table.items() if needs_details(row)}
        records: list[JobRecord] = []
        set_aside: list[SetAsideJob] = []
        for row in self._complete(commands, table, needing, samples=detailed is None):
            _keep_record(row, records, set_aside)
        self._forget_others(table)
        return records, set_aside

    def _forget_others(self, table: Mapping[str, SqueueRow]) -> None:
        self._known = {number: details for number, details in self._known.items() if number in table}
        self._unreadable = {number: unclear for number, unclear in self._unreadable.items() if number in table}

    def read_jobs(
        self, commands: Commands, limits: ClusterLimits, table: dict[str, SqueueRow]
    ) -> tuple[list[ParsedJob], list[SetAsideJob], list[str]]:
        """All jobs of squeue's table, those that cannot be read or parsed, and warnings, as `parse_jobs` of all records
        gives them; what has not changed since the last poll is not parsed again. Raises BackendError."""
        known = self._parsed.unchanged(table, limits)
        settled = {number: row for number, row in known.items() if row.stands_alone}
        others = {number: row for number, row in table.items() if number not in settled}
        needing = {
            number
            for number, row in others.items()
            if (known[number].details is not None if number in known else not row.too_long and _needs_details(row))
        }
        unread: list[SetAsideJob] = []
        unclear: list[SetAsideJob] = []
        parsed: dict[str, ParsedRow] = {}
        warnings: list[str] = []
        for row in self._complete(commands, others, needing, samples=True):
            number = row.row.number
            last = known.get(number) if row.row is table[number] else None
            if last is None or not last.is_of(row.details, row.throttle):
                records: list[JobRecord] = []
                _keep_record(row, records, unread)
                found, aside, longer = parse_jobs(records, limits)
                unclear += aside
                if aside or not records:
                    warnings += longer
                    continue
                last = ParsedRow.of(row.row, row.details, row.throttle, found, longer)
            parsed[number] = last
        self._forget_others(table)
        parsed = {number: one for number in table if (one := settled.get(number) or parsed.get(number))}
        self._parsed.keep(parsed)
        jobs = [job for one in parsed.values() for job in one.jobs]
        warnings += (warning for one in parsed.values() for warning in one.warnings)
        return jobs, [*unread, *unclear], warnings

    def _complete(
        self, commands: Commands, table: dict[str, SqueueRow], needing: Set[str], *, samples: bool
    ) -> Iterator[_CompleteRow]:
        """The rows of the table with the details of those in `needing`; with `samples` also with the throttles of
        arrays. A row that was read once more replaces the one in the table. Raises BackendError."""

        def in_need(rows: Mapping[str, SqueueRow]) -> Iterator[SqueueRow]:
            return (row for number, row in rows.items() if number in needing)

        fresh, missing = self._read_details(commands, in_need(table), _throttle_samples(table) if samples else [])
        changed = [number for number, reason in missing.items() if reason and self._is_new(table[number], reason)]
        if changed:  # a job may have started, ended or been renamed after squeue ran: read it once more
            again = {number: row for number, row in read_squeue(commands, changed).items() if number in changed}
            table |= again
            needing = (needing - again.keys()) | {
                number for number, row in again.items() if not row.too_long and _needs_details(row)
            }
            missing = {number: reason for number, reason in missing.items() if number not in again}
            missing |= dict.fromkeys(set(changed) - again.keys())
            missing |= self._read_details(commands, (row for row in again.values() if row.number in needing))[1]
        for number, reason in missing.items():
            if reason:
                self._unreadable[number] = _text_key(table[number]), reason
        throttles = _throttles(table, fresh)
        for number, row in table.items():
            if number in missing and missing[number] is None and not row.too_long:
                continue  # it ended between the two commands
            details = self._known[number][1] if number in needing and number not in missing else None
            throttle = throttles.get(row.value("ArrayJobID")) if throttles else None
            yield _CompleteRow(row, details, throttle, missing.get(number))

    def _read_details(
        self, commands: Commands, rows: Iterable[SqueueRow], also: Iterable[SqueueRow] = ()
    ) -> tuple[Mapping[str, JobDetails | str | None], dict[str, str | None]]:
        """Reads the details of `rows` that are not cached, and those of the jobs in `also` in any case.

        Returns what was read, and of the former the jobs without details: the reason, or None if Slurm purged the job.
        """
        needed = {row.number: row for row in rows if not self._is_known(row)}
        fresh = read_details(commands, list((needed | {row.number: row for row in also}).values()))
        missing: dict[str, str | None] = {}
        for number, row in needed.items():
            details = fresh[number]
            if isinstance(details, JobDetails):
                self._known[number] = _run_key(row), details
            else:
                missing[number] = details
        return fresh, missing

    def _is_known(self, row: SqueueRow) -> bool:
        return row.number in self._known and self._known[row.number][0] == _run_key(row)

    def _is_new(self, row: SqueueRow, reason: str) -> bool:
        """Whether this failure is new since the last poll; a record that always fails is not read a second time."""
        return self._unreadable.get(row.number) != (_text_key(row), reason)


@dataclass(slots=True)
class CommandSource:
    """Reads by commands: nodes, partitions and reservations by scontrol, jobs by squeue and scontrol."""

    jobs: CommandJobReader = field(default_factory=CommandJobReader)
    nodes: ParsedNodes = field(default_factory=ParsedNodes)
    name: str = field(default="commands", init=False)

    def read(self, commands: Commands, configuration: SlurmctldConfiguration, *, with_partitions: bool) -> ClusterView:
        """See `PollSource`."""
        partition_info = read_partitions(commands, configuration) if with_partitions else None
        with ThreadPoolExecutor(max_workers=1) as beside:
            table = beside.submit(read_squeue, commands)  # of ten thousand nodes and jobs each takes a second
            reservations, odd_reservations = parse_each(
                "reservation", read_lines(commands, "reservation"), parse_reservation
            )
            nodes, odd_nodes = parse_each("node", read_lines(commands, "node", "-a", "-d", "-o"), self.nodes.parse)
        self.nodes.end_poll()
        totals = limits_from_totals(node.total for node in nodes)
        jobs, set_aside, longer = self.jobs.read_jobs(commands, totals, table.result())
        oddities = (*odd_reservations, *odd_nodes, *longer)
        return ClusterView(nodes, jobs, set_aside, partition_info, oddities, reservations=tuple(reservations))


def read_partitions(commands: Commands, configuration: SlurmctldConfiguration) -> PartitionInfo:
    """Partitions as scontrol shows them. Raises BackendError."""
    exempt = configuration.preempt_exempt_time
    partitions, odd = parse_each(
        "partition", read_lines(commands, "partition"), lambda line: parse_partition(line, exempt)
    )
    return PartitionInfo(tuple(partitions), tuple(odd))


def read_jobs(
    commands: Commands,
    ids: Iterable[JobId],
    detailed: Iterable[JobId] | None = None,
    records: Mapping[JobId, str] = MappingProxyType({}),
) -> tuple[dict[JobId, Job], tuple[SetAsideJob, ...]]:
    """Reads these jobs: those that Slurm has, and those that it has but that cannot be parsed.

    Tasks in `records` are read by the numbers of their own job records, and not with all tasks of the array. Only those
    in `detailed`, where that is given, have allocations and a memory request that is not in doubt. A job in neither
    result is gone. Raises BackendError, and UnsafeCommandError for a text that is not a job id.
    """
    wanted = {checked_job_id(job) for job in ids}
    if not wanted:
        return {}, ()
    certain = None if detailed is None else set(map(_job_number, detailed))
    own = {records[job] for job in wanted & records.keys()}
    numbers = set(map(_job_number, wanted - records.keys()))
    found, unreadable = CommandJobReader().read_records(commands, numbers, certain, own)
    jobs, unclear, _ = parse_jobs(found, NO_LIMITS)
    by_id = {parsed.job.id: parsed.job for parsed in jobs if parsed.job.id in wanted}
    set_aside = (*unreadable, *unclear)
    return by_id, tuple(aside for aside in set_aside if wanted & {aside.job, *_tasks_of_array(aside.job, wanted)})


def _job_number(job: JobId) -> str:
    """The number of the job, or of its array or heterogeneous job."""
    return job.replace("+", "_").partition("_")[0]


def read_lines(commands: Commands, kind: str, *options: str) -> list[str]:
    """scontrol's records of this kind (`node`, `partition`, ...), one per line. Raises BackendError."""
    shown = commands.read("scontrol", *(options or ("-a", "-o")), "show", kind).splitlines()
    return [line for line in shown if line.startswith(f"{kind.capitalize()}Name=")]


def parse_each(kind: str, records: Iterable[Any], parse: Callable[[Any], T]) -> tuple[list[T], list[str]]:
    """Parses records (lines of scontrol or values of pyslurm). Returns the results, and a warning for each failure."""
    parsed: list[T] = []
    oddities: list[str] = []
    for record in records:
        try:
            parsed.append(parse(record))
        except (SlurmParseError, TypeError, ValueError, LookupError) as error:
            name = record.split(" ", 1)[0].partition("=")[2] if isinstance(record, str) else str(record.get("name"))
            oddities.append(f"{kind} {name[:60]} is left out: {unread_reason(error)}")
    return parsed, oddities


def _tasks_of_array(number: JobId, wanted: Iterable[JobId]) -> set[JobId]:
    """The jobs in `wanted` that belong to the array or heterogeneous job `number`."""
    return {job for job in wanted if job.replace("+", "_").partition("_")[0] == number}


def _keep_record(row: _CompleteRow, records: list[JobRecord], set_aside: list[SetAsideJob]) -> None:
    """Add the row's record, or the job that cannot be read."""
    try:
        if row.row.too_long:
            raise SlurmParseError(f"its {', '.join(sorted(row.row.too_long))} is longer than Slurm allows")
        if row.unreadable is not None:
            raise SlurmParseError(row.unreadable)
        records.append(_build_record(row.row, row.details, row.throttle))
    except Exception as error:
        set_aside.append(unreadable_job(row.row, error))


def unreadable_job(row: SqueueRow, error: Exception) -> SetAsideJob:
    """A set-aside job for a row that cannot be parsed."""
    held = row.value("PriorityLong") == "0"
    pending = parse_state(row.text("State")) is JobState.PENDING and not held
    by_hook = is_hooked(row.text("Reason"), row.text("Comment"), row.text("RestartCnt"))
    return SetAsideJob(
        _job_id(row), unread_reason(error), row.text("UserName"), row.text("Partition"), pending, by_hook
    )


def row_fields(row: SqueueRow) -> dict[str, str]:
    """The row's fields under scontrol's names, as `parse_jobs` expects them."""
    fields = {name: row.text(column) for column, name in _SCONTROL_NAMES.items()}
    if "Exclusive" in row:
        fields["Exclusive"] = row.text("Exclusive")
    if fields["NumTasks"] == _NO_VALUE:
        del fields["NumTasks"]
    fewest, most = parse_count(row.text("NumNodes")), parse_count(row.text("MaxNodes"))
    ranged = (most > 1 or most >= fewest) and parse_state(row.text("State")) is JobState.PENDING
    return fields | {"NumNodes": f"{fewest_nodes(fewest, most)}-{most}" if ranged else str(fewest)}


def _throttle_samples(table: Mapping[str, SqueueRow]) -> list[SqueueRow]:
    """One task of each array that has waiting tasks and tasks with job records, as started or held tasks get one.

    For such an array squeue no longer shows the throttle; the record of each task does. It is read at every poll, as
    the owner or an operator may change it. A task whose number is the array's comes last: asked for that, slurmctld
    sends the records of all tasks.
    """
    tasks = [
        (row, row.text("ArrayJobID"), task, parse_state(row.text("State")))
        for row in table.values()
        if (task := row.text("ArrayTaskID")) != "N/A"
    ]
    waiting = {array for _, array, _, state in tasks if state is JobState.PENDING}
    unclear = waiting - {array for _, array, task, _ in tasks if "%" in task}
    members = Counter(array for _, array, _, _ in tasks)
    samples: dict[str, SqueueRow] = {}
    for row, array, task, state in tasks:
        alone = task.isdecimal()
        split = alone or (_is_several_tasks(row) and members[array] > 1)
        if array in unclear and split and not row.too_long and state in (JobState.PENDING, JobState.RUNNING):
            samples[array] = row if alone and row.number != array else samples.get(array, row)
    return list(samples.values())


def _throttles(table: Mapping[str, SqueueRow], fresh: Mapping[str, JobDetails | str | None]) -> dict[str, int]:
    """The throttle (tasks that may run at once) of each array that has one, by the array's number."""
    throttles = {}
    for number, details in fresh.items():
        if isinstance(details, JobDetails) and details.throttle is not None:
            throttles[table[number].text("ArrayJobID")] = details.throttle
    for row in table.values():
        throttle = row.value("ArrayTaskID").partition("%")[2]
        if throttle.isdecimal():
            throttles[row.text("ArrayJobID")] = int(throttle)
    return throttles


def _is_several_tasks(row: SqueueRow) -> bool:
    tasks = or_empty(row.text("ArrayTaskID"))
    return bool(tasks) and not tasks.isdecimal()


def _build_record(row: SqueueRow, details: JobDetails | None, throttle: int | None) -> JobRecord:
    tasks = or_empty(row.text("ArrayTaskID")) + ("..." if "ArrayTaskID" in row.truncated else "")
    het = or_empty(row.text("HetJobID"))
    comment, admin_comment = (row.text(column) for column in ("Comment", "admin_comment"))
    fields = row_fields(row) | dict(details.fields if details else _memory_field(row) or {})
    return JobRecord(
        number=row.number,
        user=row.text("UserName"),
        state=row.text("State"),
        reason="_".join(row.text("Reason").split()),
        priority=parse_count(row.text("PriorityLong")),
        nice=int(row.text("Nice")),
        account=row.text("Account"),
        qos=row.text("QOS"),
        name=row.text("Name"),
        fields=fields,
        allocations=details.allocations if details else (),
        array_id=row.text("ArrayJobID") if tasks else "",
        array_tasks=tasks,
        throttle=throttle if tasks else None,
        het_id=het,
        het_offset=row.text("HetJobOffset") if het else "",
        comment="" if comment == _NO_TEXT else comment,
        admin_comment="" if admin_comment == _NO_TEXT else admin_comment,
    )


def _needs_details(row: SqueueRow) -> bool:
    state = parse_state(row.text("State"))
    if state in _WITH_NODES:
        return True
    try:
        return state is JobState.PENDING and _memory_field(row) is None
    except SlurmParseError:
        return False  # building its record raises the same error


def _run_key(row: SqueueRow) -> tuple[str, ...]:
    """A key that changes with each run of a job, and with each change of a pending job's request."""
    waiting = parse_state(row.text("State")) is JobState.PENDING
    return tuple(row.value(column) for column in (_REQUEST if waiting else _RUN))


def _text_key(row: SqueueRow) -> tuple[str, ...]:
    """A key that changes with whatever may make a record unreadable."""
    return *_run_key(row), row.value("Name"), row.value("NodeList")


def _memory_field(row: SqueueRow) -> dict[str, str] | None:
    """The memory request of a pending job under scontrol's name, None where the table leaves it open.

    squeue does not show whether it is per CPU or per node. slurmctld's total tells, unless both give the same total, as
    with one CPU on each node: the forms differ then too, once the job has more CPUs and in what its script sees.
    """
    if or_empty(row.text("mem-per-tres")):
        return {}
    amount, totals = row.text("MinMemory"), parse_tres(row.text("tres-alloc"))
    each, total = parse_mebibytes(amount), parse_mebibytes(totals.get("mem"))
    nodes, cpus = parse_count(totals.get("node"), 1), parse_count(totals.get("cpu"), 1)
    per_node, per_cpu = each * nodes == total, each * cpus == total
    if not each or (per_node and not per_cpu):
        return {"MinMemoryNode": amount}
    return {"MinMemoryCPU": amount} if per_cpu and not per_node else None


def _job_id(row: SqueueRow) -> JobId:
    """The job id as squeue shows it, without the task id where the row stands for several tasks."""
    task, het = row.text("ArrayTaskID"), or_empty(row.text("HetJobID"))
    if task.isdecimal():
        return f"{row.text('ArrayJobID')}_{task}"
    return f"{het}+{row.text('HetJobOffset')}" if het else row.number
