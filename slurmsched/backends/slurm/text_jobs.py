"""Jobs read by commands: the table of all, and the layouts of those that have nodes.

Nothing that an owner writes is searched for fields. A job's values are columns of the table (`table`); what the table
lacks is read by a grammar from the job's own text (`layouts`), once for each of its runs. A poll is one command as long
as no job starts and no array waits whose tasks have become jobs of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import NotUnderstoodError, why_unread
from slurmsched.backends.slurm.jobs import jobs_of, state_of
from slurmsched.backends.slurm.layouts import Layout, layouts
from slurmsched.backends.slurm.limits import NO_LIMITS
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.backends.slurm.table import Row, rows
from slurmsched.backends.slurm.values import mebibytes, said, tres, whole
from slurmsched.backends.slurm.words import job_id
from slurmsched.model import Job, JobId, JobState, SetAside

__all__ = ["TextJobs", "fields_of_row", "jobs_now", "set_aside"]

_FIELDS: Final = {
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
class TextJobs:
    """Jobs as `squeue` and `scontrol` print them. What was read of a run is kept until the job is seen no more."""

    name: str = field(default="commands", init=False)
    _known: dict[str, tuple[tuple[str, ...], Layout]] = field(default_factory=dict, init=False)
    _unclear: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict, init=False)

    def records(self, commands: Commands, ids: Iterable[str] | None = None) -> tuple[list[JobRecord], list[SetAside]]:
        """See `JobSource`; of `ids` (numbers of jobs, arrays or heterogeneous jobs) only what these stand for."""
        table = rows(commands, ids)
        speakers = _speakers(table)
        fresh, missing = self._read(commands, table, speakers)
        changed = [number for number, reason in missing.items() if reason and self._is_new(table[number], reason)]
        if changed:  # between the table and the texts it may have started, stopped or been renamed: look once more
            again = {number: row for number, row in rows(commands, changed).items() if number in changed}
            table |= again
            missing = {number: reason for number, reason in missing.items() if number not in again}
            missing |= dict.fromkeys(set(changed) - again.keys()) | self._read(commands, again)[1]
        for number, reason in missing.items():
            if reason:
                self._unclear[number] = _text_of(table[number]), reason
        self._known = {number: known for number, known in self._known.items() if number in table}
        self._unclear = {number: unclear for number, unclear in self._unclear.items() if number in table}
        throttles = _throttles(table, fresh)
        with_layout = {row.number for row in table.values() if not row.too_long and _needs_layout(row)}
        records: list[JobRecord] = []
        left: list[SetAside] = []
        for number, row in table.items():
            try:
                if row.too_long:
                    raise NotUnderstoodError(f"its {', '.join(sorted(row.too_long))} is longer than Slurm should take")
                if number in missing:
                    if missing[number] is None:
                        continue  # it ended between the two commands
                    raise NotUnderstoodError(missing[number] or "")
                layout = self._known[number][1] if number in with_layout else None
                records.append(_record(row, layout, throttles.get(row.text("ArrayJobID"))))
            except Exception as error:
                left.append(set_aside(row, error))
        return records, left

    def _read(
        self, commands: Commands, table: Mapping[str, Row], also: Iterable[Row] = ()
    ) -> tuple[Mapping[str, Layout | str | None], dict[str, str | None]]:
        """Read the layouts that are not known yet, and those of the jobs in `also`, whatever is known of them.

        What was read, and of the first why it is no layout, or None where Slurm knows the job no more.
        """
        needed = {
            row.number: row
            for row in table.values()
            if not row.too_long and _needs_layout(row) and not self._is_known(row)
        }
        fresh = layouts(commands, list((needed | {row.number: row for row in also}).values()))
        missing: dict[str, str | None] = {}
        for number in needed:
            layout = fresh[number]
            if isinstance(layout, Layout):
                self._known[number] = _run_of(table[number]), layout
            else:
                missing[number] = layout
        return fresh, missing

    def _is_known(self, row: Row) -> bool:
        return row.number in self._known and self._known[row.number][0] == _run_of(row)

    def _is_new(self, row: Row, reason: str) -> bool:
        """Whether the text did not fail in the same way at the last poll: what poses always costs no second look."""
        return self._unclear.get(row.number) != (_text_of(row), reason)


def jobs_now(commands: Commands, ids: Iterable[JobId]) -> tuple[dict[JobId, Job], tuple[SetAside, ...]]:
    """Of these jobs those that exist, read anew, and those that exist and cannot be read.

    A job in neither is known to Slurm no more. Raises BackendError, and UnsafeError for what is no job id.
    """
    wanted = {job_id(job) for job in ids}
    if not wanted:
        return {}, ()
    numbers = {job.replace("+", "_").partition("_")[0] for job in wanted}
    records, left = TextJobs().records(commands, numbers)
    jobs, unclear, _ = jobs_of(records, NO_LIMITS)
    found = {seen.job.id: seen.job for seen in jobs if seen.job.id in wanted}
    return found, tuple(one for one in (*left, *unclear) if wanted & {one.job, *_names(one.job, wanted)})


def _names(number: JobId, wanted: Iterable[JobId]) -> set[JobId]:
    """The tasks among these that a number of an array stands for."""
    return {job for job in wanted if job.replace("+", "_").partition("_")[0] == number}


def set_aside(row: Row, error: Exception) -> SetAside:
    """The job as one that exists and cannot be read."""
    held = row.values["PriorityLong"] == "0"
    pending = state_of(row.text("State")) is JobState.PENDING and not held
    return SetAside(_job_id(row), why_unread(error), row.text("UserName"), row.text("Partition"), pending)


def fields_of_row(row: Row) -> dict[str, str]:
    """The fields under scontrol's names, so that one reader makes jobs of them."""
    fields = {name: row.text(column) for column, name in _FIELDS.items()}
    if "Exclusive" in row.values:
        fields["Exclusive"] = row.text("Exclusive")
    if fields["NumTasks"] == _NO_VALUE:
        del fields["NumTasks"]
    fewest, most = whole(row.text("NumNodes")), whole(row.text("MaxNodes"))
    ranged = most >= fewest and state_of(row.text("State")) is JobState.PENDING
    return fields | {"NumNodes": f"{fewest}-{most}" if ranged else str(fewest)}


def _speakers(table: Mapping[str, Row]) -> list[Row]:
    """One waiting task of each array of which tasks have a job of their own, as held or requeued ones get it.

    The table then says no more how many may run at once; the record of each task does. It is read at every look, since
    an owner or an operator may change it.
    """
    told = {row.text("ArrayJobID") for row in table.values() if "%" in row.text("ArrayTaskID")}
    members = Counter(row.text("ArrayJobID") for row in table.values())
    first: dict[str, Row] = {}
    for row in table.values():
        array, alone = row.text("ArrayJobID"), row.text("ArrayTaskID").isdecimal()
        split = alone or (_stands_for_several(row) and members[array] > 1)
        if array not in told and split and state_of(row.text("State")) is JobState.PENDING and not row.too_long:
            first[array] = row if alone else first.get(array, row)
    return list(first.values())


def _throttles(table: Mapping[str, Row], fresh: Mapping[str, Layout | str | None]) -> dict[str, int]:
    """How many tasks of an array may run at once, by the array's number; those without a limit are not in it."""
    found = {}
    for number, layout in fresh.items():
        if isinstance(layout, Layout) and layout.throttle is not None:
            found[table[number].text("ArrayJobID")] = layout.throttle
    for row in table.values():
        throttle = row.text("ArrayTaskID").partition("%")[2]
        if throttle.isdecimal():
            found[row.text("ArrayJobID")] = int(throttle)
    return found


def _stands_for_several(row: Row) -> bool:
    tasks = said(row.text("ArrayTaskID"))
    return bool(tasks) and not tasks.isdecimal()


def _record(row: Row, layout: Layout | None, throttle: int | None) -> JobRecord:
    tasks = said(row.text("ArrayTaskID")) + ("..." if "ArrayTaskID" in row.cut else "")
    het = said(row.text("HetJobID"))
    comment, admin_comment = (row.text(column) for column in ("Comment", "admin_comment"))
    fields = fields_of_row(row) | dict(layout.fields if layout else _memory(row) or {})
    return JobRecord(
        number=row.number,
        user=row.text("UserName"),
        state=row.text("State"),
        reason="_".join(row.text("Reason").split()),
        priority=whole(row.text("PriorityLong")),
        nice=int(row.text("Nice")),
        account=row.text("Account"),
        qos=row.text("QOS"),
        name=row.text("Name"),
        fields=fields,
        placements=layout.placements if layout else (),
        array=row.text("ArrayJobID") if tasks else "",
        tasks=tasks,
        throttle=throttle if tasks else None,
        het=het,
        offset=row.text("HetJobOffset") if het else "",
        comment="" if comment == _NO_TEXT else comment,
        admin_comment="" if admin_comment == _NO_TEXT else admin_comment,
    )


def _needs_layout(row: Row) -> bool:
    state = state_of(row.text("State"))
    if state in _WITH_NODES:
        return True
    try:
        return state is JobState.PENDING and _memory(row) is None
    except NotUnderstoodError:
        return False  # making a record of it fails in the same way, and says so


def _run_of(row: Row) -> tuple[str, ...]:
    """What tells one run of a job, or one request of a waiting job, from another."""
    waiting = state_of(row.text("State")) is JobState.PENDING
    return tuple(row.values[column] for column in (_REQUEST if waiting else _RUN))


def _text_of(row: Row) -> tuple[str, ...]:
    """What a text that is not understood may depend on."""
    return *_run_of(row), row.values["Name"], row.values["NodeList"]


def _memory(row: Row) -> dict[str, str] | None:
    """The memory a waiting job asks for under scontrol's name, None where the table does not tell.

    squeue does not say whether it is per CPU or per node. The total that slurmctld counted says it, unless both come to
    the same total though not to the same request: on Slurm 22.05, where CPUs per GPU are counted only at the start.
    """
    if said(row.text("mem-per-tres")):
        return {}
    amount, totals = row.text("MinMemory"), tres(row.text("tres-alloc"))
    each, total = mebibytes(amount), mebibytes(totals.get("mem"))
    nodes, cpus = whole(totals.get("node"), 1), whole(totals.get("cpu"), 1)
    per_node, per_cpu = each * nodes == total, each * cpus == total
    if not each or (per_node and not per_cpu):
        return {"MinMemoryNode": amount}
    if per_cpu and not per_node:
        return {"MinMemoryCPU": amount}
    same = per_node and whole(row.text("NumCPUs"), 1) == nodes and not said(row.text("cpus-per-tres"))
    return {"MinMemoryNode": amount} if same else None


def _job_id(row: Row) -> JobId:
    """As squeue names it, without the task where the row stands for several."""
    task, het = row.text("ArrayTaskID"), said(row.text("HetJobID"))
    if task.isdecimal():
        return f"{row.text('ArrayJobID')}_{task}"
    return f"{het}+{row.text('HetJobOffset')}" if het else row.number
