"""What the table of jobs lacks: what a running job has on each node, and how its memory was asked for.

It stands in the text of `scontrol -d -o show job`, unescaped between what the job's owner wrote. One record is read
from its first byte by this grammar, and everything behind the amount of memory is never looked at:

    record   = "JobId=" number [" ArrayJobId=" number " ArrayTaskId=" word [" ArrayTaskThrottle=" number]]
               [" HetJobId=" number " HetJobOffset=" number] " JobName=" NAME " " [SLUID] [HetJobIdSet]
               "UserId=" USER "(" UID ")" … " Account=" ACCOUNT " QOS=" QOS [" WCKey=" WCKEY] " JobState=" …
               " AllocNode:Sid=" HOST ":" number " ReqNodeList=" word " ExcNodeList=" word " NodeList=" NODES
               amounts {" Nodes=" word " CPU_IDs=" word " Mem=" word " GRES=" word} " MinCPUsNode=" number
               " MinMemory" ("CPU" | "Node" | "TRES") "=" word

What stands in capitals is known from the table, and has to stand there byte for byte. These are all the places up to
the memory where text of an owner, or of a changed sbatch of his, can be. So it cannot pose as anything else.

Whose record a text is: `scontrol` is given many jobs on its standard input, and between them asked for a host list that
is a random number. It prints that number alone on a line, and nobody can have written it beforehand; between two of
them stands one job's text and nobody else's. Where many jobs are needed all records are read at once: a text that
begins like the record of a job counts if it is the only one that obeys the grammar for this job; the other jobs are
asked for by number.

Every expression is anchored or bounded, so the time is linear in the text and a record costs at most `_SLURMS` and
`_LONGEST` bytes of it, however long it is.
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
"""Up to so many jobs are asked for one by one, at 4 ms each; all records of 5,000 jobs come in 0.2 s."""
_MAX_CANDIDATES: Final = 8
"""So many texts are looked at that begin like one job's record; in all records together one is the usual number."""
_MAX_GAP_BYTES: Final = 4_096
"""Bytes of Slurm's own between two known values: times, states, limits, dependencies."""
_MAX_DETAIL_BYTES: Final = 1_048_576
"""Bytes from the list of nodes to the memory: about 100 for each node, and Slurm has no jobs on 10,000 nodes."""

_START: Final = re.compile(rb"^JobId=(\d{1,10}) ", re.MULTILINE)
_OWN_START: Final = re.compile(rb"^(?:scontrol: )?(JobId=(\d{1,10}) )", re.MULTILINE)  # a prompt, without readline
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
    """What a job has on its nodes, and fields under scontrol's names: its TRES, and its memory per CPU or per node.

    `throttle` is how many tasks of its array may run at once, None where there is no limit.
    """

    allocations: tuple[RawAllocation, ...]
    fields: Mapping[str, str]
    throttle: int | None = None


def read_details(commands: Commands, rows: Sequence[SqueueRow]) -> dict[str, JobDetails | str | None]:
    """By job number the layout, the reason why there is none, or None where Slurm knows the job no more.

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
    """The layout in the record that begins there. Raises SlurmParseError: it is not this job's, or not a record."""
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
        raise SlurmParseError("its record says something else than the table of jobs")
    return offset + len(value)


def _parse_amounts(text: str, fields: dict[str, str], throttle: int | None) -> JobDetails:
    """Nothing between the list of nodes and the memory is an owner's; each field comes once, but for the groups."""
    groups: list[dict[str, str]] = []
    for word in text.split():
        key, separator, value = word.partition("=")
        if key == "Nodes":
            groups.append({})
        if key in _ALLOCATION_KEYS and groups:
            groups[-1][key] = value
        elif key in _AMOUNTS and separator:
            if key in fields:
                raise SlurmParseError(f"its record says {key} twice")
            fields[key] = value
    return JobDetails(
        tuple(RawAllocation(*(group.get(key, "") for key in _ALLOCATION_KEYS)) for group in groups), fields, throttle
    )


def _read_all(commands: Commands, wanted: Iterable[SqueueRow]) -> dict[str, JobDetails]:
    """The layouts of the jobs for which exactly one text in all records obeys the grammar."""
    data = commands.read_result("scontrol", "-a", "-d", "-o", "show", "job").stdout_bytes
    by_number = {row.number.encode(): row for row in wanted}
    starts: dict[bytes, list[int]] = {}
    for start in _START.finditer(data):
        if start[1] in by_number and len(places := starts.setdefault(start[1], [])) <= _MAX_CANDIDATES:
            places.append(start.start())
    several = {
        number: _candidate_details(data, offsets, by_number[number])[0]
        for number, offsets in starts.items()
        if len(offsets) <= _MAX_CANDIDATES
    }
    return {number.decode(): found[0] for number, found in several.items() if len(found) == 1}


def _candidate_details(data: bytes, offsets: Iterable[int], row: SqueueRow) -> tuple[list[JobDetails], str | None]:
    """The different layouts of this job in the texts that begin there, and why the first one is none."""
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
    """Each job's own text, told apart from the others by a number that nobody can foresee."""
    mark = secrets.token_hex(16)
    ask = f"{_MARK_COMMAND.decode()}{mark}"
    answer = commands.read_many([*(line for row in wanted for line in (ask, f"show job {_query_id(row)}")), ask])
    texts = _split_at_mark(answer.stdout_bytes, mark.encode())
    if len(texts) != len(wanted) + 2:
        raise (
            error_from_stderr("scontrol", answer.stderr) if answer.stderr else BackendError("scontrol stopped half-way")
        )
    complaints = "\n".join(line for line in answer.stderr.splitlines() if _GONE not in line)
    found = {row.number: _details_in_own_text(text, row) for text, row in zip(texts[1:-1], wanted, strict=True)}
    if complaints and None in found.values():
        raise error_from_stderr("scontrol", complaints)  # it is not known that the job is gone
    return found


def _split_at_mark(data: bytes, mark: bytes) -> list[bytes]:
    """The texts before, between and behind the lines that are the mark alone; where scontrol repeats the command, the
    mark is no such line. A prompt that stands before the mark is left in the text, and does no harm there.
    """
    texts: list[bytes] = []
    repeated = False
    for text in data.split(mark + b"\n"):
        if repeated:
            texts[-1] += text
        else:
            texts.append(text)
        repeated = text.endswith(_MARK_COMMAND)
    return texts


def _query_id(row: SqueueRow) -> str:
    """By its task number a task of an array is shown alone; by its own number the last one stands for all."""
    task = row.text("ArrayTaskID")
    return f"{row.text('ArrayJobID')}_{task}" if task.isdecimal() else row.number


def _details_in_own_text(text: bytes, row: SqueueRow) -> JobDetails | str | None:
    """The layout in the job's own text. It begins there, but for the last task of an array, and the first job of a
    heterogeneous one, which stand among the others of their owner."""
    number = row.raw("JobID")
    starts = ((start.start(1), start[2] == number) for start in _OWN_START.finditer(text))
    first, is_own = next(starts, (0, False))
    rest = islice((offset for offset, own in starts if own), _MAX_CANDIDATES + 1)
    found, reason = _candidate_details(text, [first] if is_own else rest, row)
    return "its own text poses as its record" if len(found) > 1 else found[0] if found else reason
