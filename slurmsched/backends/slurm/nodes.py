"""Nodes as Slurm shows them, as the model has them: every allocation on them counts, whosever it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.gres import Gres, gpus_in, parse, shards_in
from slurmsched.backends.slurm.records import fields_of
from slurmsched.backends.slurm.values import mebibytes, said, tres, whole
from slurmsched.model import MILLI, Gpu, Node, NodeState, Resources

__all__ = ["node_of", "node_state"]

_BEHIND_REASON = re.compile(r" (?:Comment|Extra|InstanceId|InstanceType|ReservationName)=")
_BEHIND: Final = re.compile(r" (?:Reason|Comment|Extra)=")

_DOWN: Final = frozenset({"DOWN", "UNKNOWN", "FUTURE", "ERROR", "INVAL", "INVALID", "INVALID_REG", "NOT_RESPONDING"})
_DRAINING: Final = frozenset(
    {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "BLOCKED", "EXTERNAL"}
)
_LEAVING: Final = frozenset(
    {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWER_DOWN", "POWERING_DOWN", "POWER_DRAIN"}
)
_SIGNS: Final = {
    "*": "NOT_RESPONDING",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINT",
    "@": "REBOOT",
    "^": "REBOOT",
}


def node_of(line: str) -> Node:
    """One line of `scontrol -d -o show node`. Raises NotUnderstoodError."""
    behind = _BEHIND.search(line)
    fields = fields_of(line[: behind.start()] if behind else line)
    if "NodeName" not in fields:
        raise NotUnderstoodError(f"not a node: {line[:60]!r}")
    gpus = _gpus(fields)
    taken = tres(fields.get("AllocTRES"))
    return Node(
        name=fields["NodeName"],
        gpus=gpus,
        total=Resources(
            len(gpus),
            whole(fields.get("CPUEfctv"), whole(fields.get("CPUTot"))),
            mebibytes(fields.get("RealMemory")) - mebibytes(fields.get("MemSpecLimit")),
        ),
        used=Resources(
            sum(not gpu.idle for gpu in gpus),
            whole(fields.get("CPUAlloc"), whole(taken.get("cpu"))),
            mebibytes(fields.get("AllocMem") or taken.get("mem")),
        ),
        state=node_state(fields.get("State", "UNKNOWN")),
        state_text=fields.get("State", "UNKNOWN"),
        features=frozenset(filter(None, said(fields.get("ActiveFeatures")).split(","))),
        partitions=frozenset(filter(None, said(fields.get("Partitions")).split(","))),
        reason=said(_reason(line)),
        weight=whole(fields.get("Weight"), 1),
    )


def _reason(line: str) -> str:
    """Why a node is down or drained, without who said so and when."""
    text = _BEHIND_REASON.split(line.partition(" Reason=")[2], maxsplit=1)[0].rstrip()
    words, bracket, said_by = text.rpartition(" [")
    return words if bracket and said_by.endswith("]") else text


def node_state(text: str) -> NodeState:
    """What `MIXED+DRAIN` or `DOWN*` comes to. Flags count whole: POWERED_DOWN is woken for a job, DOWN is not."""
    words = set(text.upper().rstrip("".join(_SIGNS) + "~#-+").split("+"))
    words |= {_SIGNS[sign] for sign in text if sign in _SIGNS}
    if words & _DOWN:
        return NodeState.DOWN
    return NodeState.DRAINED if words & (_DRAINING | _LEAVING) else NodeState.UP


def _gpus(fields: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The devices, numbered through all types as they are configured, with what is taken of each in milli-GPU."""
    configured = gpus_in(fields.get("Gres"))
    types = [entry.type for entry in configured for _ in range(entry.count)]
    sharing = shards_in(fields.get("Gres")) // len(types) if types else 0
    used = [0] * len(types)
    shards = whole(tres(fields.get("AllocTRES")).get("gres/shard"))
    for entry in parse(fields.get("GresUsed")):
        if entry.name == "gpu":
            for index in _devices(entry, types):
                used[index] = MILLI
        elif entry.name == "shard":
            for index, part in _shared(entry, types, sharing, shards):
                used[index] = min(MILLI, used[index] + part)
    return tuple(Gpu(index, kind, used[index], sharing) for index, kind in enumerate(types))


def _devices(entry: Gres, types: list[str]) -> tuple[int, ...]:
    """The devices a type's use names; the first ones where Slurm only counts them."""
    if entry.indices:
        return tuple(index for index in entry.indices if index < len(types))
    alike = [index for index, kind in enumerate(types) if kind == entry.type or not entry.type]
    return tuple(alike[: entry.count])


def _shared(entry: Gres, types: list[str], sharing: int, shards: int) -> list[tuple[int, int]]:
    """(device, milli-GPU) for shards. Slurm 22.05 names the devices only: there the node's shards count evenly."""
    if entry.parts:
        alike = [index for index, kind in enumerate(types) if kind == entry.type or not entry.type]
        places = range(len(types)) if len(entry.parts) == len(types) else alike
        shared = zip(places, entry.parts, strict=False)  # parts of more devices than there are concern none
        return [(place, MILLI * taken // there) for place, (taken, there) in shared if there and taken]
    there = [index for index in entry.indices if index < len(types)]
    if not there:
        return []
    each = MILLI * shards // (sharing * len(there)) if sharing and shards else MILLI
    return [(index, max(1, min(MILLI, each))) for index in there]
