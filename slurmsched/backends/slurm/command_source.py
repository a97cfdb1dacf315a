"""Jobs read by commands: the table of all, and the layouts of those that have nodes.

Nothing that an owner writes is searched for fields. A job's values are columns of the table (`table`); what the table
lacks is read by a grammar from the job's own text (`layouts`), once for each of its runs. A poll is one command as long
as no job starts and no array waits whose tasks have become jobs of their own.

Where a poll comes from, and the source that is always there: Slurm's commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from slurmsched.backends.slurm.cluster import SlurmctldConfiguration, parse_node, parse_partition, parse_reservation
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError, unread_reason
from slurmsched.backends.slurm.job_details import JobDetails, read_details
from slurmsched.backends.slurm.jobs import NO_LIMITS, ParsedJob, limits_from_totals, parse_jobs, parse_state
from slurmsched.backends.slurm.operation_commands import checked_job_id
from slurmsched.backends.slurm.records import JobRecord, or_empty, parse_count, parse_mebibytes, parse_tres
from slurmsched.backends.slurm.squeue_table import SqueueRow, read_squeue
from slurmsched.model import Job, JobId, JobState, Node, Partition, Reservation, SetAsideJob

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
}
"""squeue's column and scontrol's name."""

_NO_TEXT: Final = "(null)"
"""What squeue shows for no comment; other words for nothing may be somebody's comment."""
_NO_VALUE: Final = "4294967294"
"""Slurm's number for none, which squeue shows for the tasks of jobs that were cancelled."""

_RUN: Final = ("SubmitTime", "StartTime", "RestartCnt", "NodeList", "tres-alloc", "MinMemory")
_REQUEST: Final = ("SubmitTime", "RestartCnt", "tres-alloc", "MinMemory", "NumCPUs")
_WITH_NODES: Final = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


@dataclass(slots=True)
class CommandJobReader:
    """Jobs as `squeue` and `scontrol` print them. What was read of a run is kept until the job is seen no more."""

    name: str = field(default="commands", init=False)
    _known: dict[str, tuple[tuple[str, ...], JobDetails]] = field(default_factory=dict, init=False)
    _unreadable: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict, init=False)

    def read_records(
        self, commands: Commands, ids: Iterable[str] | None = None
    ) -> tuple[list[JobRecord], list[SetAsideJob]]:
        """See `JobSource`; of `ids` (numbers of jobs, arrays or heterogeneous jobs) only what these stand for."""
        table = read_squeue(commands, ids)
        speakers = _throttle_samples(table)
        fresh, missing = self._read_details(commands, table, speakers)
        changed = [number for number, reason in missing.items() if reason and self._is_new(table[number], reason)]
        if changed:  # between the table and the texts it may have started, stopped or been renamed: look once more
            again = {number: row for number, row in read_squeue(commands, changed).items() if number in changed}
            table |= again
            missing = {number: reason for number, reason in missing.items() if number not in again}
            missing |= dict.fromkeys(set(changed) - again.keys()) | self._read_details(commands, again)[1]
        for number, reason in missing.items():
            if reason:
                self._unreadable[number] = _text_key(table[number]), reason
        self._known = {number: known for number, known in self._known.items() if number in table}
        self._unreadable = {number: unclear for number, unclear in self._unreadable.items() if number in table}
        throttles = _throttles(table, fresh)
        with_layout = {row.number for row in table.values() if not row.too_long and _needs_details(row)}
        records: list[JobRecord] = []
        left: list[SetAsideJob] = []
        for number, row in table.items():
            try:
                if row.too_long:
                    raise SlurmParseError(f"its {', '.join(sorted(row.too_long))} is longer than Slurm should take")
                if number in missing:
                    if missing[number] is None:
                        continue  # it ended between the two commands
                    raise SlurmParseError(missing[number] or "")
                details = self._known[number][1] if number in with_layout else None
                records.append(_build_record(row, details, throttles.get(row.text("ArrayJobID"))))
            except Exception as error:
                left.append(unreadable_job(row, error))
        return records, left

    def _read_details(
        self, commands: Commands, table: Mapping[str, SqueueRow], also: Iterable[SqueueRow] = ()
    ) -> tuple[Mapping[str, JobDetails | str | None], dict[str, str | None]]:
        """Read the layouts that are not known yet, and those of the jobs in `also`, whatever is known of them.

        What was read, and of the first why it is no layout, or None where Slurm knows the job no more.
        """
        needed = {
            row.number: row
            for row in table.values()
            if not row.too_long and _needs_details(row) and not self._is_known(row)
        }
        fresh = read_details(commands, list((needed | {row.number: row for row in also}).values()))
        missing: dict[str, str | None] = {}
        for number in needed:
            details = fresh[number]
            if isinstance(details, JobDetails):
                self._known[number] = _run_key(table[number]), details
            else:
                missing[number] = details
        return fresh, missing

    def _is_known(self, row: SqueueRow) -> bool:
        return row.number in self._known and self._known[row.number][0] == _run_key(row)

    def _is_new(self, row: SqueueRow, reason: str) -> bool:
        """Whether the text did not fail in the same way at the last poll: what poses always costs no second look."""
        return self._unreadable.get(row.number) != (_text_key(row), reason)


def read_jobs(commands: Commands, ids: Iterable[JobId]) -> tuple[dict[JobId, Job], tuple[SetAsideJob, ...]]:
    """Of these jobs those that exist, read anew, and those that exist and cannot be read.

    A job in neither is known to Slurm no more. Raises BackendError, and UnsafeCommandError for what is no job id.
    """
    wanted = {checked_job_id(job) for job in ids}
    if not wanted:
        return {}, ()
    numbers = {job.replace("+", "_").partition("_")[0] for job in wanted}
    records, unreadable = CommandJobReader().read_records(commands, numbers)
    jobs, unclear, _ = parse_jobs(records, NO_LIMITS)
    found = {seen.job.id: seen.job for seen in jobs if seen.job.id in wanted}
    return found, tuple(one for one in (*unreadable, *unclear) if wanted & {one.job, *_tasks_of_array(one.job, wanted)})


def _tasks_of_array(number: JobId, wanted: Iterable[JobId]) -> set[JobId]:
    """The tasks among these that a number of an array stands for."""
    return {job for job in wanted if job.replace("+", "_").partition("_")[0] == number}


def unreadable_job(row: SqueueRow, error: Exception) -> SetAsideJob:
    """The job as one that exists and cannot be read."""
    held = row.values["PriorityLong"] == "0"
    pending = parse_state(row.text("State")) is JobState.PENDING and not held
    return SetAsideJob(_job_id(row), unread_reason(error), row.text("UserName"), row.text("Partition"), pending)


def row_fields(row: SqueueRow) -> dict[str, str]:
    """The fields under scontrol's names, so that one reader makes jobs of them."""
    fields = {name: row.text(column) for column, name in _SCONTROL_NAMES.items()}
    if "Exclusive" in row.values:
        fields["Exclusive"] = row.text("Exclusive")
    if fields["NumTasks"] == _NO_VALUE:
        del fields["NumTasks"]
    fewest, most = parse_count(row.text("NumNodes")), parse_count(row.text("MaxNodes"))
    ranged = most >= fewest and parse_state(row.text("State")) is JobState.PENDING
    return fields | {"NumNodes": f"{fewest}-{most}" if ranged else str(fewest)}


def _throttle_samples(table: Mapping[str, SqueueRow]) -> list[SqueueRow]:
    """One waiting task of each array of which tasks have a job of their own, as held or requeued ones get it.

    The table then says no more how many may run at once; the record of each task does. It is read at every look, since
    an owner or an operator may change it.
    """
    known = {row.text("ArrayJobID") for row in table.values() if "%" in row.text("ArrayTaskID")}
    members = Counter(row.text("ArrayJobID") for row in table.values())
    first: dict[str, SqueueRow] = {}
    for row in table.values():
        array, alone = row.text("ArrayJobID"), row.text("ArrayTaskID").isdecimal()
        split = alone or (_is_several_tasks(row) and members[array] > 1)
        if array not in known and split and parse_state(row.text("State")) is JobState.PENDING and not row.too_long:
            first[array] = row if alone else first.get(array, row)
    return list(first.values())


def _throttles(table: Mapping[str, SqueueRow], fresh: Mapping[str, JobDetails | str | None]) -> dict[str, int]:
    """How many tasks of an array may run at once, by the array's number; those without a limit are not in it."""
    found = {}
    for number, details in fresh.items():
        if isinstance(details, JobDetails) and details.throttle is not None:
            found[table[number].text("ArrayJobID")] = details.throttle
    for row in table.values():
        throttle = row.text("ArrayTaskID").partition("%")[2]
        if throttle.isdecimal():
            found[row.text("ArrayJobID")] = int(throttle)
    return found


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
        return False  # making a record of it fails in the same way, and says so


def _run_key(row: SqueueRow) -> tuple[str, ...]:
    """What tells one run of a job, or one request of a waiting job, from another."""
    waiting = parse_state(row.text("State")) is JobState.PENDING
    return tuple(row.values[column] for column in (_REQUEST if waiting else _RUN))


def _text_key(row: SqueueRow) -> tuple[str, ...]:
    """What a text that is not understood may depend on."""
    return *_run_key(row), row.values["Name"], row.values["NodeList"]


def _memory_field(row: SqueueRow) -> dict[str, str] | None:
    """The memory a waiting job asks for under scontrol's name, None where the table does not tell.

    squeue does not say whether it is per CPU or per node. The total that slurmctld counted says it, unless both come to
    the same total though not to the same request: on Slurm 22.05, where CPUs per GPU are counted only at the start.
    """
    if or_empty(row.text("mem-per-tres")):
        return {}
    amount, totals = row.text("MinMemory"), parse_tres(row.text("tres-alloc"))
    each, total = parse_mebibytes(amount), parse_mebibytes(totals.get("mem"))
    nodes, cpus = parse_count(totals.get("node"), 1), parse_count(totals.get("cpu"), 1)
    per_node, per_cpu = each * nodes == total, each * cpus == total
    if not each or (per_node and not per_cpu):
        return {"MinMemoryNode": amount}
    if per_cpu and not per_node:
        return {"MinMemoryCPU": amount}
    same = per_node and parse_count(row.text("NumCPUs"), 1) == nodes and not or_empty(row.text("cpus-per-tres"))
    return {"MinMemoryNode": amount} if same else None


def _job_id(row: SqueueRow) -> JobId:
    """As squeue names it, without the task where the row stands for several."""
    task, het = row.text("ArrayTaskID"), or_empty(row.text("HetJobID"))
    if task.isdecimal():
        return f"{row.text('ArrayJobID')}_{task}"
    return f"{het}+{row.text('HetJobOffset')}" if het else row.number


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What seldom changes, and a sentence on each thing that could not be read."""

    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...]
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What was read. `surroundings` is None where they were not asked for.

    `oddities` are for everybody, one sentence each; `remarks` say to who asks how something was read.
    """

    nodes: Sequence[Node]
    jobs: Sequence[ParsedJob]
    set_aside: Sequence[SetAsideJob]
    partition_info: PartitionInfo | None = None
    oddities: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class PollSource(Protocol):
    """Where polls come from."""

    @property
    def name(self) -> str:
        """`commands` or `pyslurm`."""

    def read(self, commands: Commands, configuration: SlurmctldConfiguration, *, with_partitions: bool) -> ClusterView:
        """Nodes and jobs, and at least where `around` what is around them. Raises BackendError."""


@dataclass(slots=True)
class CommandSource:
    """scontrol's nodes, partitions and reservations, and squeue's jobs."""

    jobs: CommandJobReader = field(default_factory=CommandJobReader)
    name: str = field(default="commands", init=False)

    def read(self, commands: Commands, configuration: SlurmctldConfiguration, *, with_partitions: bool) -> ClusterView:
        """See `Source`."""
        partition_info = None
        if with_partitions:
            exempt = configuration.preempt_exempt_time
            partitions, odd = parse_each(
                "partition", read_lines(commands, "partition"), lambda line: parse_partition(line, exempt)
            )
            reservations, odd_too = parse_each("reservation", read_lines(commands, "reservation"), parse_reservation)
            partition_info = PartitionInfo(tuple(partitions), tuple(reservations), (*odd, *odd_too))
        nodes, odd_nodes = parse_each("node", read_lines(commands, "node", "-a", "-d", "-o"), parse_node)
        records, unread = self.jobs.read_records(commands)
        jobs, unclear, longer = parse_jobs(records, limits_from_totals(node.total for node in nodes))
        return ClusterView(nodes, jobs, [*unread, *unclear], partition_info, (*odd_nodes, *longer))


def read_lines(commands: Commands, kind: str, *options: str) -> list[str]:
    """What scontrol shows of this kind, one record a line. Raises BackendError."""
    shown = commands.read("scontrol", *(options or ("-a", "-o")), "show", kind).splitlines()
    return [line for line in shown if line.startswith(f"{kind.capitalize()}Name=")]


def parse_each(kind: str, records: Iterable[Any], parse: Callable[[Any], T]) -> tuple[list[T], list[str]]:
    """What could be read, and a sentence on each of the others: a line of scontrol's, or values of pyslurm's."""
    parsed: list[T] = []
    oddities: list[str] = []
    for record in records:
        try:
            parsed.append(parse(record))
        except (SlurmParseError, TypeError, ValueError, LookupError) as error:
            name = record.split(" ", 1)[0].partition("=")[2] if isinstance(record, str) else str(record.get("name"))
            oddities.append(f"{kind} {name[:60]} is left out: {unread_reason(error)}")
    return parsed, oddities
