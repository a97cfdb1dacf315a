"""Jobs as a table of fixed width, in which no text can pass for another column or another job.

`squeue -O 'JobID:12,…,Comment:1100'` pads and cuts each value to as many bytes as its column has (in the C locale
bytes, not characters; measured on 22.05, 24.11 and 26.05 with line breaks and characters of several bytes). A record is
therefore exactly as long as its columns and the line break behind them, whatever its owner wrote, and is taken apart by
counting.

A value that fills its column may have been cut: such jobs are asked for once more, with that column wide. Nobody else
is asked for in that width: of an array that somebody splits into its tasks, one number may stand for thousands. Names
and comments have wide ones at once, because Slurm takes up to 1,024 bytes and a cut at a blank would not show. Columns
that a release does not know are named on standard error and left out by squeue; only those in `_NEW` may be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import CommandResult, Commands

_TEXT_BYTES: Final = 1_100
"""Bytes for a name or a comment: more than the 1,024 that slurmctld takes."""
_LIST_BYTES: Final = 16_384
"""Bytes for a list of nodes or tasks that is asked for again."""

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
    "Dependency": (128, _LIST_BYTES),
    "admin_comment": (_TEXT_BYTES, _TEXT_BYTES),
    "Name": (_TEXT_BYTES, _TEXT_BYTES),
    "Comment": (_TEXT_BYTES, _TEXT_BYTES),
}
"""Bytes of each column, and of the one in which a job is asked for again."""

_TASK_COLUMNS: Final[Mapping[str, int]] = {"JobID": 12, "ArrayJobID": 12, "ArrayTaskID": 12}
"""Bytes of the columns by which tasks are told apart."""

_OPTIONAL_COLUMNS: Final = frozenset({"ExcNodes", "Exclusive"})
"""Columns that not every release has: 22.05 has neither, 24.11 no `Exclusive`."""
_PREFIX_COLUMNS: Final = frozenset({"Reason", "admin_comment"})
"""Columns of which the beginning is enough: a sentence for people, and whose an administrators' comment is."""
_TRUNCATABLE_COLUMNS: Final = _PREFIX_COLUMNS | {"ArrayTaskID"}
"""Of an array as many tasks are told apart as fit."""

_ID_COLUMNS: Final = ("JobID", "ArrayJobID", "HetJobID")

_SQUEUE: Final = ("squeue", "-h", "-a", "-t", "all")
_UNKNOWN: Final = re.compile(r"Invalid job format specification: (\S+)")
_GONE: Final = "Invalid job id specified"
_BLANK: Final = ord(" ")
_BATCH_SIZE: Final = 200
"""So many jobs are asked for by one command: its arguments stay short, and wide records in memory under 40 MB."""


@dataclass(frozen=True, slots=True)
class SqueueRow:
    """A job's values by squeue's column, without the blanks behind them. `cut` are the columns that were too narrow.

    Bytes of a value that are no UTF-8 stand in it as surrogates: `text` is for the model, `exact` to compare.
    """

    values: Mapping[str, str]
    truncated: frozenset[str] = frozenset()

    @property
    def number(self) -> str:
        """Its own job number, also of a task of an array."""
        return self.values["JobID"]

    @property
    def too_long(self) -> frozenset[str]:
        """The columns whose value is longer than what is read of it, and which are needed whole."""
        return self.truncated - _TRUNCATABLE_COLUMNS

    def text(self, column: str) -> str:
        """The value; empty where this release has no such column. Bytes that are no UTF-8 are replaced."""
        value = self.values.get(column, "")
        return value if value.isascii() else self.raw(column).decode(errors="replace")

    def raw(self, column: str) -> bytes:
        """The value byte for byte."""
        return self.values[column].encode(errors="surrogateescape")


def read_squeue(
    commands: Commands, ids: Iterable[str] | None = None, *, hidden_tasks: bool = True
) -> dict[str, SqueueRow]:
    """All jobs by their own number, in its order; with `ids` (an array stands for its tasks) those of them.

    Where the table of all is too narrow for a job, its values are those of the wide one. Without `hidden` the waiting
    tasks are left out that squeue shows as a part of their array. Raises BackendError.
    """
    wanted = None if ids is None else sorted(set(ids), key=int)
    if wanted is not None and not wanted:
        return {}
    asked = wanted if wanted is not None and len(wanted) <= _BATCH_SIZE else ()
    by_number = {row.number: row for row in sorted(_query(commands, asked, ()), key=lambda row: int(row.number))}
    if wanted is not None and not asked:
        chosen = frozenset(wanted)
        by_number = {
            number: row for number, row in by_number.items() if chosen & {row.values[key] for key in _ID_COLUMNS}
        }
    if hidden_tasks:
        by_number |= _split_out_tasks(commands, by_number)
    again = [row for row in by_number.values() if row.truncated - _PREFIX_COLUMNS]
    for some in _batched(again):
        cut = frozenset[str]().union(*(row.truncated for row in some)) - _PREFIX_COLUMNS
        numbers = {row.number for row in some}
        widened = _query(commands, [_single_id(row) for row in some], cut)
        by_number.update((row.number, row) for row in widened if row.number in numbers)
    return by_number


def columns_query(ids: Sequence[str] = (), wide: Collection[str] = _COLUMNS) -> tuple[str, ...]:
    """The command for the table of all jobs, or for that of these with these columns wide."""
    widths = _widths(wide if ids else ())
    return (*_SQUEUE, "-O", ",".join(f"{column}:{width}" for column, width in widths.items()), *_job_option(ids))


def excluded_query(ids: Sequence[str] = (), wide: Collection[str] = _COLUMNS) -> tuple[str, ...]:
    """The command for job numbers and excluded nodes in the short form, of all jobs or of these, then maybe wide."""
    return (*_SQUEUE, "-o", f"%12A%{_widths(wide if ids else ())['ExcNodes']}x", *_job_option(ids))


def tasks_query(arrays: Sequence[str]) -> tuple[str, ...]:
    """The command for each task of these arrays, also those that have no record of their own."""
    return (
        *_SQUEUE,
        "-r",
        "-O",
        ",".join(f"{column}:{width}" for column, width in _TASK_COLUMNS.items()),
        *_job_option(arrays),
    )


def _widths(wide: Collection[str]) -> dict[str, int]:
    return {column: sizes[column in wide] for column, sizes in _COLUMNS.items()}


def _single_id(row: SqueueRow) -> str:
    """The name by which squeue shows this job alone: a task may have the number that stands for its whole array."""
    task = row.values["ArrayTaskID"]
    return f"{row.values['ArrayJobID']}_{task}" if task.isdecimal() else row.number


def _job_option(ids: Sequence[str]) -> tuple[str, ...]:
    return ("-j", ",".join(ids)) if ids else ()


def _query(commands: Commands, ids: Sequence[str], wide: Collection[str]) -> Iterator[SqueueRow]:
    """The rows of one query; none where Slurm knows none of the jobs."""
    try:
        answer = commands.read_result(*columns_query(ids, wide))
        left_out = _unknown_columns(answer)
        widths = {column: width for column, width in _widths(wide).items() if column not in left_out}
        if "ExcNodes" in widths:
            yield from _parse_rows(answer.stdout_bytes, widths)
            return
        excluded = _parse_excluded(
            commands.read_result(*excluded_query(ids, wide)).stdout_bytes, _COLUMNS["ExcNodes"]["ExcNodes" in wide]
        )
    except BackendError as error:
        if ids and _GONE in str(error):
            return
        raise
    for row in _parse_rows(answer.stdout_bytes, widths):
        nodes, cut = excluded.get(row.number, ("", False))
        yield SqueueRow({**row.values, "ExcNodes": nodes}, row.truncated | {"ExcNodes"} if cut else row.truncated)


def _split_out_tasks(commands: Commands, found: Mapping[str, SqueueRow]) -> dict[str, SqueueRow]:
    """The waiting tasks that squeue does not show because their array stands for them, and that array without them.

    A task that was changed by itself has a record of its own, yet squeue counts it among those that have none.
    """
    arrays = [row.number for row in found.values() if re.match(r"\d+[-,:%]", row.values["ArrayTaskID"])]
    left: dict[str, list[str]] = {}
    hidden: dict[str, str] = {}
    for first in range(0, len(arrays), _BATCH_SIZE):
        for number, array, task in _query_tasks(commands, arrays[first : first + _BATCH_SIZE]):
            if number in found and number == array:
                left.setdefault(number, []).append(task)
            elif number not in found:
                hidden[number] = f"{array}_{task}"
    names = list(hidden.values())
    rows: dict[str, SqueueRow] = {}
    for first in range(0, len(names), _BATCH_SIZE):
        rows |= {row.number: row for row in _query(commands, names[first : first + _BATCH_SIZE], ())}
    changed = {row.values["ArrayJobID"] for row in rows.values()}
    for number in changed & left.keys():
        values = found[number].values
        throttle = "".join(values["ArrayTaskID"].partition("%")[1:])
        own = {**values, "ArrayTaskID": ",".join(left[number]) + throttle}
        rows[number] = SqueueRow(own, found[number].truncated - {"ArrayTaskID"})
    return rows


def _query_tasks(commands: Commands, arrays: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Number, array and task of each task of these arrays."""
    try:
        answer = commands.read_result(*tasks_query(arrays))
    except BackendError as error:
        if _GONE in str(error):
            return
        raise
    for row in _parse_rows(answer.stdout_bytes, _TASK_COLUMNS):
        yield tuple(row.values.values())


def _unknown_columns(answer: CommandResult) -> frozenset[str]:
    """The columns that this release does not know. Raises BackendError where one is needed."""
    unknown = frozenset(_UNKNOWN.findall(answer.stderr))
    if unknown - _OPTIONAL_COLUMNS:
        raise BackendError(f"squeue does not know the columns {', '.join(sorted(unknown - _OPTIONAL_COLUMNS))}")
    return unknown


def _parse_rows(data: bytes, widths: Mapping[str, int]) -> Iterator[SqueueRow]:
    """Raises BackendError where the text is no table of these widths."""
    form = Struct("".join(f"{size}s" for size in widths.values()) + "c")
    if len(data) % form.size:
        raise BackendError(f"squeue prints records of another length than {form.size} bytes")
    columns = tuple(widths)
    for *values, end in form.iter_unpack(data):
        if end != b"\n" or not values[0].rstrip(b" ").isdigit():
            raise BackendError("squeue prints a record that does not begin with a job number, or does not end")
        cut = [column for column, value in zip(columns, values, strict=True) if value[-1] != _BLANK]
        texts = b"\0".join([value.rstrip(b" ") for value in values]).decode(errors="surrogateescape").split("\0")
        yield SqueueRow(dict(zip(columns, texts, strict=True)), frozenset(cut))


def _batched(rows: Sequence[SqueueRow]) -> Iterator[Sequence[SqueueRow]]:
    return (rows[start : start + _BATCH_SIZE] for start in range(0, len(rows), _BATCH_SIZE))


def _parse_excluded(data: bytes, width: int) -> dict[str, tuple[str, bool]]:
    """The excluded nodes by job, and whether they were cut."""
    form = Struct(f"12s{width}sc")
    if len(data) % form.size:
        raise BackendError(f"squeue prints records of another length than {form.size} bytes")
    return {
        number.rstrip(b" ").decode(): (nodes.rstrip(b" ").decode(errors="surrogateescape"), nodes[-1] != _BLANK)
        for number, nodes, _ in form.iter_unpack(data)
    }
