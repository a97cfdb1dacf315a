r"""What the table of jobs lacks: what a running job has on each node, and how its memory was asked for.

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
from slurmsched.backends.slurm.errors import NotUnderstoodError, explained
from slurmsched.backends.slurm.records import Placement
from slurmsched.backends.slurm.table import Row
from slurmsched.backends.slurm.values import said

__all__ = ["Layout", "layout_of", "layouts"]

_FEW: Final = 25
"""Up to so many jobs are asked for one by one, at 4 ms each; all records of 5,000 jobs come in 0.2 s."""
_CANDIDATES: Final = 8
"""So many texts are looked at that begin like one job's record; in all records together one is the usual number."""
_SLURMS: Final = 4_096
"""Bytes of Slurm's own between two known values: times, states, limits, dependencies."""
_LONGEST: Final = 1_048_576
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
_GROUP: Final = ("Nodes", "CPU_IDs", "Mem", "GRES")
_GONE: Final = "Invalid job id specified"
_ASKED: Final = b"show hostnames "


@dataclass(frozen=True, slots=True)
class Layout:
    """What a job has on its nodes, and fields under scontrol's names: its TRES, and its memory per CPU or per node.

    `throttle` is how many tasks of its array may run at once, None where there is no limit.
    """

    placements: tuple[Placement, ...]
    fields: Mapping[str, str]
    throttle: int | None = None


def layouts(commands: Commands, wanted: Sequence[Row]) -> dict[str, Layout | str | None]:
    """By job number the layout, the reason why there is none, or None where Slurm knows the job no more.

    Raises BackendError.
    """
    found: dict[str, Layout | str | None] = {}
    open_ones = wanted
    if len(wanted) > _FEW:
        found.update(_from_all(commands, wanted))
        open_ones = [row for row in wanted if row.number not in found]
    if open_ones:
        found.update(_one_by_one(commands, open_ones))
    return found


def layout_of(data: bytes, start: int, row: Row) -> Layout:
    """The layout in the record that begins there. Raises NotUnderstoodError: it is not this job's, or not a record."""
    front = _FRONT.match(data, start)
    place = _after(data, _behind(front), row.exact("Name"))
    head = _USER.match(data, place)
    place = _behind(head)
    if head is None or (head[1], head[2]) != (row.exact("UserName"), row.exact("UserID")):
        raise NotUnderstoodError("its record names another user")
    place = _after(data, place, row.exact("Account"))
    place = _after(data, place, b" QOS=" + row.exact("QOS"))
    if data.startswith(b" WCKey=", place):
        place = _after(data, place, b" WCKey=" + row.exact("WCKey"))
    place = _behind(_STATE.match(data, place))
    place = data.find(_HOST, place, place + _SLURMS)
    if place < 0:
        raise NotUnderstoodError("its record does not say where it was submitted")
    place = _after(data, place + len(_HOST), row.exact("AllocNodes"))
    nodes = _NODES.match(data, place)
    place = _behind(nodes)
    if nodes is None or said(nodes[1].decode(errors="replace")) != said(row.text("NodeList")):
        raise NotUnderstoodError("its record names other nodes")
    memory = _MEMORY.search(data, place, place + _LONGEST)
    if memory is None or b"\n" in data[place : memory.end()]:
        raise NotUnderstoodError("its record does not say how much memory it asks for")
    fields = {memory[1].decode(): memory[2].decode(errors="replace")}
    throttle = int(front[2]) if front is not None and front[2] else None
    return _amounts(data[place : memory.start()].decode(errors="replace"), fields, throttle)


def _behind(match: re.Match[bytes] | None) -> int:
    if match is None:
        raise NotUnderstoodError("its record is not as scontrol shows one")
    return match.end()


def _after(data: bytes, place: int, value: bytes) -> int:
    if not data.startswith(value, place):
        raise NotUnderstoodError("its record says something else than the table of jobs")
    return place + len(value)


def _amounts(text: str, fields: dict[str, str], throttle: int | None) -> Layout:
    """Nothing between the list of nodes and the memory is an owner's; each field comes once, but for the groups."""
    groups: list[dict[str, str]] = []
    for word in text.split():
        key, separator, value = word.partition("=")
        if key == "Nodes":
            groups.append({})
        if key in _GROUP and groups:
            groups[-1][key] = value
        elif key in _AMOUNTS and separator:
            if key in fields:
                raise NotUnderstoodError(f"its record says {key} twice")
            fields[key] = value
    return Layout(tuple(Placement(*(group.get(key, "") for key in _GROUP)) for group in groups), fields, throttle)


def _from_all(commands: Commands, wanted: Iterable[Row]) -> dict[str, Layout]:
    """The layouts of the jobs for which exactly one text in all records obeys the grammar."""
    data = commands.read_answer("scontrol", "-a", "-d", "-o", "show", "job").data
    by_number = {row.number.encode(): row for row in wanted}
    starts: dict[bytes, list[int]] = {}
    for start in _START.finditer(data):
        if start[1] in by_number and len(places := starts.setdefault(start[1], [])) <= _CANDIDATES:
            places.append(start.start())
    several = {
        number: _readings(data, places, by_number[number])[0]
        for number, places in starts.items()
        if len(places) <= _CANDIDATES
    }
    return {number.decode(): found[0] for number, found in several.items() if len(found) == 1}


def _readings(data: bytes, places: Iterable[int], row: Row) -> tuple[list[Layout], str | None]:
    """The different layouts of this job in the texts that begin there, and why the first one is none."""
    found: list[Layout] = []
    reason: str | None = None
    for place in places:
        try:
            layout = layout_of(data, place, row)
        except NotUnderstoodError as error:
            reason = reason or str(error)
            continue
        if layout not in found:
            found.append(layout)
    return found, reason


def _one_by_one(commands: Commands, wanted: Sequence[Row]) -> dict[str, Layout | str | None]:
    """Each job's own text, told apart from the others by a number that nobody can foresee."""
    mark = secrets.token_hex(16)
    ask = f"{_ASKED.decode()}{mark}"
    answer = commands.read_many([*(line for row in wanted for line in (ask, f"show job {_name(row)}")), ask])
    texts = _between(answer.data, mark.encode())
    if len(texts) != len(wanted) + 2:
        raise explained("scontrol", answer.error) if answer.error else BackendError("scontrol stopped half-way")
    complaints = "\n".join(line for line in answer.error.splitlines() if _GONE not in line)
    found = {row.number: _own(text, row) for text, row in zip(texts[1:-1], wanted, strict=True)}
    if complaints and None in found.values():
        raise explained("scontrol", complaints)  # it is not known that the job is gone
    return found


def _between(data: bytes, mark: bytes) -> list[bytes]:
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
        repeated = text.endswith(_ASKED)
    return texts


def _name(row: Row) -> str:
    """By its task number a task of an array is shown alone; by its own number the last one stands for all."""
    task = row.text("ArrayTaskID")
    return f"{row.text('ArrayJobID')}_{task}" if task.isdecimal() else row.number


def _own(text: bytes, row: Row) -> Layout | str | None:
    """The layout in the job's own text. It begins there, but for the last task of an array, and the first job of a
    heterogeneous one, which stand among the others of their owner."""
    number = row.exact("JobID")
    starts = ((start.start(1), start[2] == number) for start in _OWN_START.finditer(text))
    first, is_own = next(starts, (0, False))
    rest = islice((place for place, own in starts if own), _CANDIDATES + 1)
    found, reason = _readings(text, [first] if is_own else rest, row)
    return "its own text poses as its record" if len(found) > 1 else found[0] if found else reason
