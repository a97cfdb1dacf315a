"""Details of a job that squeue's table lacks: its allocation on each node, and the form of its memory request.

They stand in the output of `scontrol -d -o show job`, which does not escape text that the job's owner wrote. One
record is parsed from its first byte by this grammar; nothing after the amount of memory is looked at:

    record   = "JobId=" number [" ArrayJobId=" number " ArrayTaskId=" word [" ArrayTaskThrottle=" number]]
               [" HetJobId=" number " HetJobOffset=" number] " JobName=" NAME " " [SLUID] [HetJobIdSet]
               "UserId=" USER "(" UID ")" … " Account=" ACCOUNT " QOS=" QOS [" WCKey=" WCKEY] " JobState=" …
               " AllocNode:Sid=" HOST ":" number " ReqNodeList=" word " ExcNodeList=" word " NodeList=" NODES
               amounts {" Nodes=" word " CPU_IDs=" word " Mem=" word " GRES=" word} " MinCPUsNode=" number
               " MinMemory" ("CPU" | "Node" | "TRES") "=" word

Values in capitals are known from the table and must match byte for byte. They are all the fields up to the memory
that can contain text of the owner, or of a sbatch that the owner modified, so that text cannot pass for another field.

To tell records apart, `scontrol` is given `show job` lines on its standard input and, between them, a `show hostnames`
of a random number. It prints that number alone on a line, and as no user can know it in advance, the text between two
such lines belongs to one job. If many jobs are needed, all records are read at once: a job's details count if exactly
one text matches the grammar for this job; the other jobs are queried one by one.

Every expression is anchored or bounded, so parsing takes linear time, and reads at most `_MAX_GAP_BYTES` and
`_MAX_DETAIL_BYTES` of a record however long it is.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError, error_from_stderr
from slurmsched.backends.slurm.records import RawAllocation, or_empty
from slurmsched.backends.slurm.squeue_table import SqueueRow

_MAX_SINGLE_QUERIES: Final = 25
"""Jobs that are queried one by one at most, at 4 ms each; all records of 5,000 jobs take 0.2 s."""
_MAX_CANDIDATES: Final = 8
"""Texts that are tried for one job at most; usually there is exactly one."""
_MAX_GAP_BYTES: Final = 4_096
"""Bytes between two known values at most: times, states, limits, dependencies."""
_MAX_DETAIL_BYTES: Final = 1_048_576
"""Bytes from the node list to the memory at most: about 100 per node, enough for 10,000 nodes."""

_RECORD_START: Final = re.compile(rb"^JobId=(\d{1,10}) ", re.MULTILINE)
_PROMPTED_START: Final = re.compile(rb"^(?:scontrol: )?(JobId=(\d{1,10}) )", re.MULTILINE)  # a prompt, without readline
_FRONT: Final = re.compile(
    rb"JobId=(\d{1,10}) (?:ArrayJobId=\d+ ArrayTaskId=\S+ (?:ArrayTaskThrottle=(\d{1,10}) )?)?"
    rb"(?:HetJobId=\d+ HetJobOffset=\d+ )?JobName="
)
_USER: Final = re.compile(
    rb" +(?:SLUID=\S+ )?(?:HetJobIdSet=\S+ )?UserId=([^\s()]+)\((\d+)\) GroupId=[^\s()]*\(\d+\) MCS_label=\S*"
    rb" Priority=\d+ Nice=-?\d+ Account="
)
_STATE: Final = re.compile(rb" JobState=\S+ Reason=")
_HOST: Final = b" AllocNode:Sid="
_NODES: Final = re.compile(rb":\d+ ReqNodeList=\S* ExcNodeList=\S* NodeList=(\S*) ")
_MEMORY: Final = re.compile(rb" (MinMemory(?:CPU|Node|TRES))=(\S+)")
_AMOUNTS: Final = frozenset({"ReqTRES", "AllocTRES", "TRES", "JOB_GRES"})
_ALLOCATION_KEYS: Final = ("Nodes", "CPU_IDs", "Mem", "GRES")
_GONE: Final = "Invalid job id specified"
_MARK_COMMAND: Final = b"show hostnames "


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job's allocation on each node, and fields under scontrol's names: TRES, and memory per CPU or per node.

    `throttle` is how many tasks of its array may run at once, None for no limit.
    """

    allocations: tuple[RawAllocation, ...]
    fields: Mapping[str, str]
    throttle: int | None = None


def read_details(commands: Commands, rows: Sequence[SqueueRow]) -> dict[str, JobDetails | str | None]:
    """For each job number its details, the reason why they cannot be read, or None if Slurm no longer knows the job.

    Raises BackendError.
    """
    by_number: dict[str, JobDetails | str | None] = {}
    remaining = rows
    if len(rows) > _MAX_SINGLE_QUERIES:
        by_number.update(_read_all(commands, rows))
        remaining = [row for row in rows if row.number not in by_number]
    if remaining:
        by_number.update(_read_one_by_one(commands, remaining))
    return by_number


def parse_details(data: bytes, start: int, row: SqueueRow) -> JobDetails:
    """Parses the record that begins at `start`. Raises SlurmParseError if it is no record or not this job's."""
    front = _FRONT.match(data, start)
    offset = _expect(data, _end_of_match(front), row.raw("Name"))
    head = _USER.match(data, offset)
    offset = _end_of_match(head)
    if head is None or (head[1], head[2]) != (row.raw("UserName"), row.raw("UserID")):
        raise SlurmParseError("its record names another user")
    offset = _expect(data, offset, row.raw("Account"))
    offset = _expect(data, offset, b" QOS=" + row.raw("QOS"))
    if data.startswith(b" WCKey=", offset):
        offset = _expect(data, offset, b" WCKey=" + row.raw("WCKey"))
    offset = _end_of_match(_STATE.match(data, offset))
    offset = data.find(_HOST, offset, offset + _MAX_GAP_BYTES)
    if offset < 0:
        raise SlurmParseError("its record does not say where it was submitted")
    offset = _expect(data, offset + len(_HOST), row.raw("AllocNodes"))
    nodes = _NODES.match(data, offset)
    offset = _end_of_match(nodes)
    if nodes is None or or_empty(nodes[1].decode(errors="replace")) != or_empty(row.text("NodeList")):
        raise SlurmParseError("its record names other nodes")
    memory = _MEMORY.search(data, offset, offset + _MAX_DETAIL_BYTES)
    if memory is None or b"\n" in data[offset : memory.end()]:
        raise SlurmParseError("its record does not say how much memory it asks for")
    fields = {memory[1].decode(): memory[2].decode(errors="replace")}
    throttle = int(front[2]) if front is not None and front[2] else None
    return _parse_amounts(data[offset : memory.start()].decode(errors="replace"), fields, throttle)


def _end_of_match(match: re.Match[bytes] | None) -> int:
    if match is None:
        raise SlurmParseError("its record is not as scontrol shows one")
    return match.end()


def _expect(data: bytes, offset: int, value: bytes) -> int:
    if not data.startswith(value, offset):
        raise SlurmParseError("its record differs from squeue's table")
    return offset + len(value)


def _parse_amounts(text: str, fields: dict[str, str], throttle: int | None) -> JobDetails:
    """Parses the text from the node list to the memory, none of which a user writes; only groups repeat fields."""
    groups: list[dict[str, str]] = []
    for word in text.split():
        key, separator, value = word.partition("=")
        if key == "Nodes":
            groups.append({})
        if key in _ALLOCATION_KEYS and groups:
            groups[-1][key] = value
        elif key in _AMOUNTS and separator:
            if key in fields:
                raise SlurmParseError(f"its record shows {key} twice")
            fields[key] = value
    return JobDetails(
        tuple(RawAllocation(*(group.get(key, "") for key in _ALLOCATION_KEYS)) for group in groups), fields, throttle
    )


def _read_all(commands: Commands, wanted: Iterable[SqueueRow]) -> dict[str, JobDetails]:
    """Reads all records. Returns the details of the jobs for which exactly one text matches the grammar."""
    data = commands.read_result("scontrol", "-a", "-d", "-o", "show", "job").stdout_bytes
    by_number = {row.number.encode(): row for row in wanted}
    starts: dict[bytes, list[int]] = {}
    for start in _RECORD_START.finditer(data):
        if start[1] in by_number and len(offsets := starts.setdefault(start[1], [])) <= _MAX_CANDIDATES:
            offsets.append(start.start())
    candidates = {
        number: _candidate_details(data, offsets, by_number[number])[0]
        for number, offsets in starts.items()
        if len(offsets) <= _MAX_CANDIDATES
    }
    return {number.decode(): details[0] for number, details in candidates.items() if len(details) == 1}


def _candidate_details(data: bytes, offsets: Iterable[int], row: SqueueRow) -> tuple[list[JobDetails], str | None]:
    """The distinct details that parse at these offsets, and the first error."""
    parsed: list[JobDetails] = []
    reason: str | None = None
    for offset in offsets:
        try:
            details = parse_details(data, offset, row)
        except SlurmParseError as error:
            reason = reason or str(error)
            continue
        if details not in parsed:
            parsed.append(details)
    return parsed, reason


def _read_one_by_one(commands: Commands, wanted: Sequence[SqueueRow]) -> dict[str, JobDetails | str | None]:
    """Queries each job by itself; a random mark separates the records."""
    mark = secrets.token_hex(16)
    mark_line = f"{_MARK_COMMAND.decode()}{mark}"
    lines = (line for row in wanted for line in (mark_line, f"show job {_query_id(row)}"))
    answer = commands.read_many([*lines, mark_line])
    texts = _split_at_mark(answer.stdout_bytes, mark.encode())
    if len(texts) != len(wanted) + 2:
        raise (
            error_from_stderr("scontrol", answer.stderr)
            if answer.stderr
            else BackendError("scontrol ended before it had answered every query")
        )
    errors = "\n".join(line for line in answer.stderr.splitlines() if _GONE not in line)
    by_number = {row.number: _details_of_job(text, row) for text, row in zip(texts[1:-1], wanted, strict=True)}
    if errors and None in by_number.values():
        raise error_from_stderr("scontrol", errors)  # a job without a record may still exist
    return by_number


def _split_at_mark(data: bytes, mark: bytes) -> list[bytes]:
    """Splits scontrol's output at the lines that are the mark. A mark that is scontrol's echo of the command is none.

    A prompt before a mark stays in the text, which does no harm.
    """
    texts: list[bytes] = []
    echoed = False
    for text in data.split(mark + b"\n"):
        if echoed:
            texts[-1] += text
        else:
            texts.append(text)
        echoed = text.endswith(_MARK_COMMAND)
    return texts


def _query_id(row: SqueueRow) -> str:
    """The id that shows this job alone: an array's job number may show all its tasks, `ARRAY_TASK` shows one, for which
    slurmctld sends all."""
    task, array = row.text("ArrayTaskID"), row.text("ArrayJobID")
    return f"{array}_{task}" if task.isdecimal() and row.number == array else row.number


def _details_of_job(text: bytes, row: SqueueRow) -> JobDetails | str | None:
    """The details in the answer to one query, the reason why they cannot be read, or None without a record.

    The text begins with the job's record, except for the last task of an array and the first job of a heterogeneous
    job, whose records stand among the others of the same owner.
    """
    number = row.raw("JobID")
    starts = ((start.start(1), start[2] == number) for start in _PROMPTED_START.finditer(text))
    first, matches = next(starts, (0, False))
    rest = islice((offset for offset, same_number in starts if same_number), _MAX_CANDIDATES + 1)
    candidates, reason = _candidate_details(text, [first] if matches else rest, row)
    if len(candidates) > 1:
        return "text of its owner looks like a second record of it"
    return candidates[0] if candidates else reason
