"""Where one job ends and the next begins in the text of `scontrol -v -d -o show job`, and which field is which.

A job's name, comment, paths and mail address are its owner's words and stand unescaped between Slurm's own, line breaks
included. What holds all the same:

- `scontrol -v` says first how many records follow. As long as no more lines than that begin like a record, each such
  line is one, and all other lines belong to the one before. `proven` says so; if it fails, somebody forges records.
- `JobId=` stands before anything an owner may write. The fields from `UserId=` to `Reason=` follow one another with
  nothing of his between them; a record where that sequence comes twice is left out. Up to `Command=` nothing is free
  text, so allocations, node lists and counts are Slurm's.
- Behind `Command=` an owner can only misstate what he says himself: his comment and what he asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.slurm.errors import NotUnderstoodError

__all__ = ["JobRecord", "Placement", "Records", "anatomy", "fields_of", "number_of", "split"]

_COUNT = re.compile(r"last_update_time=\S* records=(\d+)")
_NUMBER = re.compile(r"JobId=(\d+) ")
_FRONT = re.compile(
    r"JobId=(?P<number>\d+) "
    r"(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<tasks>\S+) (?:ArrayTaskThrottle=(?P<throttle>\d+) )?)?"
    r"(?:HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+) )?JobName="
)
_HEAD = re.compile(
    r" UserId=(?P<user>[^\s()]+)\((?P<uid>\d+)\) GroupId=[^()]*\(\d+\) MCS_label=\S* Priority=(?P<priority>\d+)"
    r" Nice=(?P<nice>-?\d+) Account=(?P<account>\S*) QOS=(?P<qos>\S*)(?: WCKey=\S*)?"
    r" JobState=(?P<state>\S+) Reason=(?P<reason>\S*)"
)
_BEHIND_NAME = re.compile(r"(?: SLUID=\S+)?(?: HetJobIdSet=\S+)?\Z")
_FREE_TEXT: Final = " Command="
_GROUP: Final = ("Nodes", "CPU_IDs", "Mem", "GRES")
_ASKED = re.compile(r" (TresPer(?:Job|Node|Socket|Task)|(?:Cpus|Mem)PerTres)=(\S*)")
_BEHIND_COMMENT = re.compile(
    r" +(?:SystemComment|Comment|Extra|StdErr|SegmentSize|Switches|BurstBuffer|BurstBufferState|Power|GresEnforceBind"
    r"|KillOInInvalidDependent|SpreadJob|OOMKillStep|CpusPerTres|MemPerTres|TresBind|TresFreq|TresPerJob|TresPerNode"
    r"|TresPerSocket|TresPerTask|MailUser|NtasksPerTRES|Container|SELinuxContext|ResvPorts)="
)


@dataclass(frozen=True, slots=True)
class Records:
    """The texts of single jobs. `proven`: there are as many as Slurm said."""

    texts: tuple[str, ...]
    proven: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """What a job has on each of `nodes` (a hostlist): CPU numbers, MiB and GRES as Slurm writes them."""

    nodes: str
    cpus: str
    memory: str
    gres: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job, taken apart. `array` and `tasks` are empty unless it belongs to an array, `offset` unless to a het job.

    `fields` are the others by Slurm's names; those that an owner worded are only his own.
    """

    number: str
    user: str
    state: str
    reason: str
    priority: int
    nice: int
    account: str
    qos: str
    name: str
    fields: Mapping[str, str]
    placements: tuple[Placement, ...] = ()
    array: str = ""
    tasks: str = ""
    throttle: int | None = None
    het: str = ""
    offset: str = ""
    comment: str = ""
    admin_comment: str = ""


def split(text: str) -> Records:
    """The records in the output of `scontrol -v -d -o show job`; without `-v` nothing is proven."""
    texts: list[str] = []
    promised: int | None = None
    for line in text.split("\n"):
        if _NUMBER.match(line):
            texts.append(line)
        elif texts:
            texts[-1] += f"\n{line}"
        elif promised is None and (match := _COUNT.match(line.replace(", ", " "))):
            promised = int(match[1])
    return Records(tuple(text.rstrip("\n") for text in texts), promised == len(texts))


def number_of(text: str) -> str:
    """The job number a record begins with."""
    match = _NUMBER.match(text)
    return match[1] if match else ""


def anatomy(text: str) -> JobRecord:
    """One record taken apart. Raises NotUnderstoodError: not a job, or one that imitates Slurm's own fields."""
    front = _FRONT.match(text)
    heads = tuple(_HEAD.finditer(text, front.end() - 1)) if front else ()
    if front is None or not heads:
        raise NotUnderstoodError("it is not a job as scontrol shows one")
    if len(heads) > 1:
        raise NotUnderstoodError("its name or comment imitates Slurm's own fields: submit it with others")
    head = heads[0]
    name = _BEHIND_NAME.sub("", text[front.end() : head.start()], count=1)
    middle, _, owned = text[head.end() :].partition(_FREE_TEXT)
    fields, placements = _middle(middle)
    admin_comment, comment, behind = _comments(owned)
    fields.update(_ASKED.findall(behind))
    throttle = front["throttle"]
    return JobRecord(
        number=front["number"],
        user=head["user"],
        state=head["state"],
        reason=head["reason"],
        priority=int(head["priority"]),
        nice=int(head["nice"]),
        account=head["account"],
        qos=head["qos"],
        name=name,
        fields=fields,
        placements=placements,
        array=front["array"] or "",
        tasks=front["tasks"] or "",
        throttle=int(throttle) if throttle else None,
        het=front["het"] or "",
        offset=front["offset"] or "",
        comment=comment,
        admin_comment=admin_comment,
    )


def fields_of(line: str) -> dict[str, str]:
    """A node, partition or reservation by field: values end at a blank, and the first of a name counts."""
    fields: dict[str, str] = {}
    for word in line.split():
        key, separator, value = word.partition("=")
        if separator:
            fields.setdefault(key, value)
    return fields


def _middle(text: str) -> tuple[dict[str, str], tuple[Placement, ...]]:
    fields: dict[str, str] = {}
    groups: list[dict[str, str]] = []
    for word in text.split(" "):
        key, separator, value = word.partition("=")
        if not separator:
            continue
        if key == "Nodes":
            groups.append({})
        if key in _GROUP and groups:
            groups[-1][key] = value
        else:
            fields.setdefault(key, value)
    return fields, tuple(Placement(*(group.get(key, "") for key in _GROUP)) for group in groups)


def _comments(owned: str) -> tuple[str, str, str]:
    """The administrators' comment, the owner's, and the text behind both."""
    place = max(owned.find(" WorkDir="), 0)
    theirs, own = owned.find(" AdminComment=", place), owned.find(" Comment=", place)
    admin_comment = ""
    if theirs >= 0 and (own < 0 or theirs < own):
        admin_comment, place = _value(owned, theirs + len(" AdminComment="))
        own = owned.find(" Comment=", place)
    if own < 0:
        return admin_comment, "", owned[place:]
    comment, place = _value(owned, own + len(" Comment="))
    return admin_comment, comment, owned[place:]


def _value(owned: str, start: int) -> tuple[str, int]:
    match = _BEHIND_COMMENT.search(owned, start)
    end = match.start() if match else len(owned)
    return owned[start:end].rstrip(" \n"), end
