"""Reads jobs as squeue's table of fixed width, in which no text can pass for another column or another job.

`squeue -O 'JobID:.12,…,Comment:.1100'` pads and cuts each value to the bytes of its column (in the C locale bytes, not
characters; measured on 22.05, 24.11 and 26.05 with line breaks and multibyte characters). Every record is therefore
exactly as long as its columns and the line break after them, whatever its owner wrote, and is split by position. Values
stand at the right of their columns: squeue writes each blank behind a value by itself, half of its processor time.

A value that fills its column may have been cut: such jobs are queried again with that column wide. Only their records
are kept then, as one number may stand for thousands of tasks if a user splits an array. Names and comments are wide at
once: Slurm allows 1,024 bytes, and a cut of one that begins with a blank would not show. squeue leaves out columns that
a release does not know and names them on standard error; only those in `_OPTIONAL_COLUMNS` may be missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Final, TypeVar

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.model import JobId

Item = TypeVar("Item")

_TEXT_BYTES: Final = 1_100
"""Bytes for a name or a comment: more than the 1,024 that slurmctld allows."""
_LIST_BYTES: Final = 16_384
"""Bytes for a list of nodes or tasks in the second query."""

_COLUMNS: Final[Mapping[str, tuple[int, int]]] = {
    "JobID": (12, 12),
    "UserName": (34, 256),
    "UserID": (12, 12),
    "ArrayTaskID": (64, _LIST_BYTES),
    "ArrayJobID": (12, 12),
    "HetJobID": (12, 12),
    "HetJobOffset": (12, 12),
    "State": (16, 64),
    "Reason": (64, _TEXT_BYTES),
    "PriorityLong": (12, 12),
    "Nice": (12, 12),
    "Account": (64, _TEXT_BYTES),
    "QOS": (64, _TEXT_BYTES),
    "WCKey": (32, _TEXT_BYTES),
    "AllocNodes": (64, _TEXT_BYTES),
    "Partition": (64, _TEXT_BYTES),
    "Reservation": (64, _TEXT_BYTES),
    "NumNodes": (12, 12),
    "MaxNodes": (12, 12),
    "NumCPUs": (12, 12),
    "NumTasks": (12, 12),
    "NTPerNode": (12, 12),
    "NTPerSocket": (12, 12),
    "NTPerCore": (12, 12),
    "SCT": (24, 64),
    "CoreSpec": (12, 12),
    "MinCPUs": (12, 12),
    "MinTmpDisk": (16, 32),
    "ReqSwitch": (12, 12),
    "SegmentSize": (12, 12),
    "Contiguous": (4, 4),
    "Reboot": (4, 4),
    "Licenses": (16, 16),
    "BurstBuffer": (16, 16),
    "Prefer": (16, 16),
    "MinMemory": (16, 32),
    "cpus-per-tres": (48, _TEXT_BYTES),
    "mem-per-tres": (48, _TEXT_BYTES),
    "tres-per-job": (64, _TEXT_BYTES),
    "tres-per-node": (64, _TEXT_BYTES),
    "tres-per-socket": (64, _TEXT_BYTES),
    "tres-per-task": (64, _TEXT_BYTES),
    "tres-alloc": (160, _TEXT_BYTES),
    "OverSubscribe": (12, 32),
    "Exclusive": (12, 32),
    "Feature": (128, _LIST_BYTES),
    "ReqNodes": (128, _LIST_BYTES),
    "ExcNodes": (128, _LIST_BYTES),
    "NodeList": (128, _LIST_BYTES),
    "BatchFlag": (4, 4),
    "Requeue": (4, 4),
    "RestartCnt": (12, 12),
    "SubmitTime": (20, 20),
    "EligibleTime": (20, 20),
    "StartTime": (20, 20),
    "EndTime": (20, 20),
    "TimeUsed": (20, 20),
    "TimeLimit": (20, 20),
    "MinTime": (20, 20),
    "Dependency": (128, _LIST_BYTES),
    "admin_comment": (_TEXT_BYTES, _TEXT_BYTES),
    "Name": (_TEXT_BYTES, _TEXT_BYTES),
    "Comment": (_TEXT_BYTES, _TEXT_BYTES),
}
"""Bytes of each column in the first query and in the second, wide one."""

_TASK_COLUMNS: Final[Mapping[str, int]] = {"JobID": 12, "ArrayJobID": 12, "ArrayTaskID": 12}
"""Bytes of the columns that identify a task."""

_RECORD_COLUMNS: Final[Mapping[str, int]] = {**_TASK_COLUMNS, "Reason": 64}

_OPTIONAL_COLUMNS: Final = frozenset({"ExcNodes", "Exclusive", "SegmentSize"})
"""Columns that not every release has: 22.05 has none of them, 24.11 only `ExcNodes`."""
_PREFIX_COLUMNS: Final = frozenset({"Reason", "admin_comment", "Licenses", "BurstBuffer", "Prefer"})
"""Columns of which a prefix is enough: the reason is only shown, the comment's prefix tells who wrote it, and of the
others it counts whether there is anything at all."""
_TRUNCATABLE_COLUMNS: Final = _PREFIX_COLUMNS | {"ArrayTaskID"}
"""Columns that may be cut: of an array, the tasks that fit are read."""

ID_COLUMNS: Final = ("JobID", "ArrayJobID", "HetJobID")
"""The columns with the number of a job, of its array and of its heterogeneous job."""

_MOST_KEPT: Final = 6_144
"""Bytes of a record that is kept from poll to poll; of wide ones, of 21 to 70 kB, digests are."""

NO_TASK: Final = "N/A"
"""What stands in `ArrayTaskID` of a job that is of no array."""

_SQUEUE: Final = ("squeue", "-h", "-a", "-t", "all")
_EACH: Final = ("-r",)
"""A row for each task of an array."""
_UNKNOWN: Final = re.compile(r"Invalid job format specification: (\S+)")
_GONE: Final = "Invalid job id specified"
_BLANK: Final = ord(" ")
_LINE_BREAK: Final = ord("\n")
_BATCH_SIZE: Final = 200
"""Jobs per query with wide columns: their records stay under 40 MB of memory."""
_FEWEST_OF_STEP: Final = 5
"""Tasks that `squeue -r` shows of a record whose tasks are told by a step: Slurm writes six or more so."""
MOST_NAMED: Final = 1_000
"""Jobs that a query names at most, of which each makes slurmctld list all jobs; for more jobs the table is read."""
_MOST_ALONE: Final = 32
"""Arrays of which each is queried by itself at most: each is a request to slurmctld."""
_AT_ONCE: Final = 2
"""Queries of one array each at a time: most of such a query is to start squeue and to wait for slurmctld."""
_JOBS_PER_QUERY: Final = 300
"""Jobs that take as long to list as an array of one record by itself, 17 ms; each further record of an array takes as
long as two jobs. A query that names two jobs lists all: 1.3 s of 22,000 (24.11)."""


class TableLayout:
    """Where each column of a record is."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        ends = tuple(accumulate(widths.values()))
        self.size: Final = ends[-1] + 1
        """Bytes of a record with its line break."""
        self.columns: Final[Mapping[str, slice]] = {
            column: slice(end - width, end) for (column, width), end in zip(widths.items(), ends, strict=True)
        }
        self._first_bytes = itemgetter(0, *ends[:-1])
        self._blank = (_BLANK,) * len(ends)

    def truncated(self, record: bytes) -> frozenset[str]:
        """The columns that were too narrow: no blank is left in them."""
        first = self._first_bytes(record)
        if first == self._blank:
            return frozenset()
        return frozenset(column for column, byte in zip(self.columns, first, strict=True) if byte != _BLANK)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A job's record but for one column: the bytes before and after it, or digests of them where the record is wide."""

    layout: TableLayout
    before: bytes
    after: bytes
    replaced: Mapping[str, str]

    def is_of(self, row: SqueueRow, without: str) -> bool:
        """Whether this is what the row shows."""
        if self.layout is not row.layout or self.replaced != row.replaced:
            return False
        if len(row.record) > _MOST_KEPT:
            return self == row.shown(without)
        return row.record.startswith(self.before) and row.record.endswith(self.after)


@dataclass(frozen=True, slots=True)
class SqueueRow:
    """A job's record, read by squeue's columns without leading blanks. `truncated` are the columns that were too
    narrow, `replaced` values that count instead of those in the record.

    Bytes that are not UTF-8 are surrogates in `value`: use `text` for the model, `raw` to compare. A value is cut out
    of the record when it is asked for: of a job that has not changed since the last poll few are.
    """

    record: bytes
    layout: TableLayout
    truncated: frozenset[str] = frozenset()
    replaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """The job number; each task of an array with a record has its own."""
        return self.value("JobID")

    @property
    def too_long(self) -> frozenset[str]:
        """The truncated columns that are needed whole."""
        return self.truncated - _TRUNCATABLE_COLUMNS

    def __contains__(self, column: str) -> bool:
        return column in self.layout.columns or column in self.replaced

    def value(self, column: str) -> str:
        """The value, with surrogates. Raises KeyError if this release has no such column."""
        if column in self.replaced:
            return self.replaced[column]
        return self.record[self.layout.columns[column]].lstrip(b" ").decode(errors="surrogateescape")

    def text(self, column: str) -> str:
        """The value; empty if this release has no such column. Bytes that are not UTF-8 are replaced."""
        value = self.value(column) if column in self else ""
        return value if value.isascii() else value.encode(errors="surrogateescape").decode(errors="replace")

    def raw(self, column: str) -> bytes:
        """The value byte for byte."""
        return self.value(column).encode(errors="surrogateescape")

    def shown(self, without: str) -> ShownRow:
        """What squeue shows of the job but for this column, to be compared with what it shows at the next poll."""
        left_out = self.layout.columns[without]
        before, after = self.record[: left_out.start], self.record[left_out.stop :]
        if len(self.record) > _MOST_KEPT:
            before, after = blake2b(before).digest(), blake2b(after).digest()
        return ShownRow(self.layout, before, after, self.replaced)


def read_squeue(
    commands: Commands, ids: Iterable[str] | None = None, *, hidden_tasks: bool = True, records: Iterable[str] = ()
) -> dict[str, SqueueRow]:
    """All jobs by job number, ascending; with `ids` only those (an array's number stands for all its tasks) and those
    of `records`, which are numbers of tasks with job records of their own.

    A job with truncated values is read again with wide columns. Without `hidden_tasks`, pending tasks that squeue only
    shows as a part of their array are left out. Raises BackendError.
    """
    wanted, own = None if ids is None else sorted(set(ids), key=int), sorted(set(records), key=int)
    by_number = {row.number: row for row in _query_wanted(commands, wanted)}
    if hidden_tasks:
        by_number |= _split_out_tasks(commands, by_number)
    # One by one: else squeue shows what is pending of an array as one.
    by_number |= {row.number: row for row in _query_named(commands, own, each_task=True)}
    truncated_rows = [row for row in by_number.values() if row.truncated - _PREFIX_COLUMNS]
    for batch in _batched(truncated_rows):
        wide = frozenset[str]().union(*(row.truncated for row in batch)) - _PREFIX_COLUMNS
        numbers = {row.number for row in batch}
        widened = _query(commands, [_single_id(row) for row in batch], wide)
        by_number.update(
            (row.number, _with_tasks_of(by_number[row.number], row)) for row in widened if row.number in numbers
        )
    return by_number


def _query_wanted(commands: Commands, wanted: Sequence[str] | None) -> Sequence[SqueueRow]:
    """The rows of these jobs, or of all for None, by their numbers."""
    if wanted is not None and not wanted:
        return ()
    queried = wanted if wanted is not None and len(wanted) <= MOST_NAMED else ()
    rows = sorted(_query(commands, queried, ()), key=lambda row: int(row.number))
    if wanted is None or queried:
        return rows
    chosen = frozenset(wanted)
    return [row for row in rows if chosen & {row.value(key) for key in ID_COLUMNS}]


def _with_tasks_of(narrow: SqueueRow, wide: SqueueRow) -> SqueueRow:
    """The wide row, with the tasks that an array's record was found to stand for: squeue shows all that are pending."""
    if "ArrayTaskID" not in narrow.replaced:
        return wide
    found = {"ArrayTaskID": narrow.replaced["ArrayTaskID"]}
    return replace(wide, truncated=wide.truncated - found.keys(), replaced={**wide.replaced, **found})


def columns_query(
    ids: Sequence[str] = (), wide: Collection[str] = _COLUMNS, *, each_task: bool = False
) -> tuple[str, ...]:
    """The squeue command for all jobs, or for these ids with these columns wide; with `each_task` a row for each."""
    return narrow_query(ids, _widths(wide if ids else ()), each_task=each_task)


def excluded_query(
    ids: Sequence[str] = (), wide: Collection[str] = _COLUMNS, *, each_task: bool = False
) -> tuple[str, ...]:
    """The squeue command for excluded nodes with `-o`, which releases without the `ExcNodes` column need."""
    form = f"%.12A%.{_widths(wide if ids else ())['ExcNodes']}x"
    return (*_SQUEUE, *_EACH[:each_task], "-o", form, *_job_option(ids))


def narrow_query(
    ids: Sequence[str], columns: Mapping[str, int] = _TASK_COLUMNS, *, each_task: bool = False
) -> tuple[str, ...]:
    """The squeue command for columns of these widths, of all jobs or of these ids.

    With `each_task` it shows a row for every task of an array, also for those without a job record.
    """
    form = ",".join(f"{column}:.{width}" for column, width in columns.items())
    return (*_SQUEUE, *_EACH[:each_task], "-O", form, *_job_option(ids))


def _widths(wide: Collection[str]) -> dict[str, int]:
    return {column: sizes[column in wide] for column, sizes in _COLUMNS.items()}


def _single_id(row: SqueueRow) -> str:
    """The id that shows this job alone: a task's job number may also stand for its whole array."""
    task = row.value("ArrayTaskID")
    return f"{row.value('ArrayJobID')}_{task}" if task.isdecimal() else row.number


def _job_option(ids: Sequence[str]) -> tuple[str, ...]:
    return ("-j", ",".join(ids)) if ids else ()


def _query(
    commands: Commands, ids: Sequence[str], wide: Collection[str], *, each_task: bool = False
) -> Iterator[SqueueRow]:
    """The rows of one query; none if Slurm knows none of the jobs."""
    try:
        answer = commands.read_result(*columns_query(ids, wide, each_task=each_task))
        unknown = _unknown_columns(answer)
        widths = {column: width for column, width in _widths(wide).items() if column not in unknown}
        if "ExcNodes" in widths:
            yield from _parse_rows(answer.stdout_bytes, widths)
            return
        excluded = _parse_excluded(
            commands.read_result(*excluded_query(ids, wide, each_task=each_task)).stdout_bytes,
            _COLUMNS["ExcNodes"]["ExcNodes" in wide],
        )
    except BackendError as error:
        if ids and _GONE in str(error):
            return
        raise
    for row in _parse_rows(answer.stdout_bytes, widths):
        nodes, is_cut = excluded.get(row.number, ("", False))
        truncated = row.truncated | {"ExcNodes"} if is_cut else row.truncated
        yield replace(row, truncated=truncated, replaced={"ExcNodes": nodes})


def _query_named(commands: Commands, names: Sequence[str], *, each_task: bool = False) -> Iterator[SqueueRow]:
    """The rows of the tasks with these names or numbers, as many as a query may name at once."""
    for named in _batched(names, MOST_NAMED):
        yield from _query(commands, named, (), each_task=each_task)


def _split_out_tasks(commands: Commands, table: Mapping[str, SqueueRow]) -> dict[str, SqueueRow]:
    """Rows of the pending tasks that squeue hides behind their array, and the array's row without them.

    A task that was changed alone has its own record, yet squeue counts it among the tasks without one.
    """
    arrays = [row.number for row in table.values() if re.match(r"\d+[-,:%]", row.value("ArrayTaskID"))]
    array_tasks: dict[str, list[str]] = {}
    hidden: dict[str, str] = {}
    alone = commands.rate_limit is None and _quicker_alone(arrays, table)
    with ThreadPoolExecutor(max_workers=_AT_ONCE if alone else 1) as beside:
        batches = _batched(arrays, 1 if alone else _BATCH_SIZE)
        answers = beside.map(lambda named: [*_query_tasks(commands, named)], batches)
        for number, array, task in chain.from_iterable(answers):
            if number in table and number == array:
                array_tasks.setdefault(number, []).append(task)
            elif number not in table:
                hidden[number] = f"{array}_{task}"
    rows = {row.number: row for row in _query_named(commands, list(hidden.values()))}
    changed = array_tasks.keys() & {row.value("ArrayJobID") for row in rows.values()}
    steps = {number: task for number in changed if (task := _next_of_step(array_tasks[number]))}
    for row in _query_named(commands, [f"{number}_{task}" for number, task in steps.items()]):
        if row.value("ArrayTaskID").partition("%")[0] == steps.get(row.number):
            array_tasks[row.number].append(steps[row.number])
    for number in changed:
        row = table[number]
        throttle = "".join(row.value("ArrayTaskID").partition("%")[1:])
        remaining = {**row.replaced, "ArrayTaskID": ",".join(array_tasks[number]) + throttle}
        rows[number] = replace(row, truncated=row.truncated - {"ArrayTaskID"}, replaced=remaining)
    return rows


def _quicker_alone(arrays: Sequence[str], table: Mapping[str, SqueueRow]) -> bool:
    """Whether to query each of these arrays by itself takes less than a query of several, which lists all jobs."""
    if not 0 < len(arrays) <= _MOST_ALONE:
        return False
    records = Counter(row.value("ArrayJobID") for row in table.values())
    return sum(_JOBS_PER_QUERY + 2 * records[array] for array in arrays) <= len(table)


def _next_of_step(tasks: Sequence[str]) -> str:
    """The task that may be missing: `squeue -r` leaves out the last one of a record whose tasks are told by a step, as
    `0-12:2` (25.11), which are six or more."""
    numbers = [int(task) for task in tasks]
    steps = {later - task for task, later in pairwise(numbers)}
    return str(numbers[-1] + steps.pop()) if len(numbers) >= _FEWEST_OF_STEP and len(steps) == 1 else ""


def _query_tasks(
    commands: Commands, arrays: Sequence[str], columns: Mapping[str, int] = _TASK_COLUMNS
) -> Iterator[tuple[str, ...]]:
    """The values of these columns of each task of these arrays."""
    for row in query_columns(commands, arrays, columns, each_task=True):
        yield tuple(map(row.value, columns))


def query_columns(
    commands: Commands, ids: Sequence[str], columns: Mapping[str, int], *, each_task: bool = False
) -> Iterator[SqueueRow]:
    """The rows of these jobs, or of all, with these columns; none if Slurm knows none of the jobs."""
    try:
        answer = commands.read_result(*narrow_query(ids, columns, each_task=each_task))
    except BackendError as error:
        if ids and _GONE in str(error):
            return
        raise
    yield from _parse_rows(answer.stdout_bytes, columns)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """Where slurmctld keeps a task of an array: the number of its job record, empty where it shares that of its array
    with others or is its last; and the reason why it waits, as Slurm calls it."""

    number: str
    reason: str


def read_task_records(commands: Commands, array: str) -> dict[JobId, TaskRecord]:
    """The record of each task of an array that is in the queue. Raises BackendError."""
    rows = [*_query_tasks(commands, [array], _RECORD_COLUMNS)]
    shared = {number for number, times in Counter(number for number, *_ in rows).items() if times > 1}
    return {
        f"{of}_{task}": TaskRecord("" if number == of or number in shared else number, reason)
        for number, of, task, reason in rows
    }


def _unknown_columns(answer: CommandResult) -> frozenset[str]:
    """The columns that this release of squeue does not know. Raises BackendError for a required one."""
    unknown = frozenset(_UNKNOWN.findall(answer.stderr))
    if unknown - _OPTIONAL_COLUMNS:
        raise BackendError(f"squeue does not know the columns {', '.join(sorted(unknown - _OPTIONAL_COLUMNS))}")
    return unknown


def _parse_rows(data: bytes, widths: Mapping[str, int]) -> Iterator[SqueueRow]:
    """Splits squeue's output into rows. Raises BackendError if it is no table of these widths."""
    layout = _layout(tuple(widths.items()))
    if len(data) % layout.size:
        raise BackendError(f"squeue prints records of another length than {layout.size} bytes")
    first = layout.columns[next(iter(widths))]
    for start in range(0, len(data), layout.size):
        record = data[start : start + layout.size - 1]
        if data[start + layout.size - 1] != _LINE_BREAK or not record[first].lstrip(b" ").isdigit():
            raise BackendError("squeue prints a record without a job number or a line break")
        yield SqueueRow(record, layout, layout.truncated(record))


@cache
def _layout(widths: tuple[tuple[str, int], ...]) -> TableLayout:
    return TableLayout(dict(widths))


def _batched(items: Sequence[Item], size: int = _BATCH_SIZE) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _parse_excluded(data: bytes, width: int) -> dict[str, tuple[str, bool]]:
    """The excluded nodes of each job, and whether the list was cut."""
    return {
        row.number: (row.value("ExcNodes"), bool(row.truncated))
        for row in _parse_rows(data, {"JobID": 12, "ExcNodes": width})
    }
