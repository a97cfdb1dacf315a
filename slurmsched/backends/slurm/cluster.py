"""Nodes, partitions, reservations and slurmctld's configuration as scontrol shows them, as the model has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import Gres, count_shards, parse_gpus, parse_gres
from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.backends.slurm.records import (
    or_empty,
    parse_count,
    parse_fields,
    parse_mebibytes,
    parse_seconds,
    parse_time,
    parse_tres,
)
from slurmsched.model import MILLI_PER_GPU, Gpu, Job, JobState, Node, NodeState, Partition, Reservation, Resources

_AFTER_REASON = re.compile(r" (?:Comment|Extra|InstanceId|InstanceType|ReservationName)=")
_FREE_TEXT: Final = re.compile(r" (?:Reason|Comment|Extra)=")

_DOWN: Final = frozenset({"DOWN", "UNKNOWN", "FUTURE", "ERROR", "INVAL", "INVALID", "INVALID_REG", "NOT_RESPONDING"})
_DRAINING: Final = frozenset(
    {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "BLOCKED", "EXTERNAL"}
)
_LEAVING: Final = frozenset(
    {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWER_DOWN", "POWERING_DOWN", "POWER_DRAIN"}
)
_STATE_SUFFIXES: Final = {
    "*": "NOT_RESPONDING",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINT",
    "@": "REBOOT",
    "^": "REBOOT",
}


def parse_node(line: str) -> Node:
    """One line of `scontrol -d -o show node`. Raises NotUnderstoodError."""
    behind = _FREE_TEXT.search(line)
    fields = parse_fields(line[: behind.start()] if behind else line)
    if "NodeName" not in fields:
        raise SlurmParseError(f"not a node: {line[:60]!r}")
    gpus = _parse_gpus(fields)
    taken = parse_tres(fields.get("AllocTRES"))
    return Node(
        name=fields["NodeName"],
        gpus=gpus,
        total=Resources(
            len(gpus),
            parse_count(fields.get("CPUEfctv"), parse_count(fields.get("CPUTot"))),
            parse_mebibytes(fields.get("RealMemory")) - parse_mebibytes(fields.get("MemSpecLimit")),
        ),
        used=Resources(
            sum(not gpu.idle for gpu in gpus),
            parse_count(fields.get("CPUAlloc"), parse_count(taken.get("cpu"))),
            parse_mebibytes(fields.get("AllocMem") or taken.get("mem")),
        ),
        state=parse_node_state(fields.get("State", "UNKNOWN")),
        state_text=fields.get("State", "UNKNOWN"),
        features=frozenset(filter(None, or_empty(fields.get("ActiveFeatures")).split(","))),
        partitions=frozenset(filter(None, or_empty(fields.get("Partitions")).split(","))),
        reason=or_empty(_reason(line)),
        weight=parse_count(fields.get("Weight"), 1),
    )


def _reason(line: str) -> str:
    """Why a node is down or drained, without who said so and when."""
    text = _AFTER_REASON.split(line.partition(" Reason=")[2], maxsplit=1)[0].rstrip()
    words, bracket, said_by = text.rpartition(" [")
    return words if bracket and said_by.endswith("]") else text


def parse_node_state(text: str) -> NodeState:
    """What `MIXED+DRAIN` or `DOWN*` comes to. Flags count whole: POWERED_DOWN is woken for a job, DOWN is not."""
    flags = set(text.upper().rstrip("".join(_STATE_SUFFIXES) + "~#-+").split("+"))
    flags |= {_STATE_SUFFIXES[sign] for sign in text if sign in _STATE_SUFFIXES}
    if flags & _DOWN:
        return NodeState.DOWN
    return NodeState.DRAINED if flags & (_DRAINING | _LEAVING) else NodeState.UP


def _parse_gpus(fields: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The devices, numbered through all types as they are configured, with what is taken of each in milli-GPU."""
    configured = parse_gpus(fields.get("Gres"))
    types = [entry.type for entry in configured for _ in range(entry.count)]
    sharing = count_shards(fields.get("Gres")) // len(types) if types else 0
    used = [0] * len(types)
    shards = parse_count(parse_tres(fields.get("AllocTRES")).get("gres/shard"))
    for entry in parse_gres(fields.get("GresUsed")):
        if entry.name == "gpu":
            for index in _devices(entry, types):
                used[index] = MILLI_PER_GPU
        elif entry.name == "shard":
            for index, part in _milli_gpu_of_shards(entry, types, sharing, shards):
                used[index] = min(MILLI_PER_GPU, used[index] + part)
    return tuple(Gpu(index, kind, used[index], sharing) for index, kind in enumerate(types))


def _devices(entry: Gres, types: list[str]) -> tuple[int, ...]:
    """The devices a type's use names; the first ones where Slurm only counts them."""
    if entry.indices:
        return tuple(index for index in entry.indices if index < len(types))
    alike = [index for index, kind in enumerate(types) if kind == entry.type or not entry.type]
    return tuple(alike[: entry.count])


def _milli_gpu_of_shards(entry: Gres, types: list[str], sharing: int, shards: int) -> list[tuple[int, int]]:
    """(device, milli-GPU) for shards. Slurm 22.05 names the devices only: there the node's shards count evenly."""
    if entry.shards_by_device:
        alike = [index for index, kind in enumerate(types) if kind == entry.type or not entry.type]
        indices = range(len(types)) if len(entry.shards_by_device) == len(types) else alike
        shared = zip(indices, entry.shards_by_device, strict=False)  # parts of more devices than there are concern none
        return [(place, MILLI_PER_GPU * taken // there) for place, (taken, there) in shared if there and taken]
    there = [index for index in entry.indices if index < len(types)]
    if not there:
        return []
    each = MILLI_PER_GPU * shards // (sharing * len(there)) if sharing and shards else MILLI_PER_GPU
    return [(index, max(1, min(MILLI_PER_GPU, each))) for index in there]


def count_shards_by_job(nodes: Iterable[Node], jobs: Iterable[Job]) -> Iterator[Node]:
    """The nodes, with the shards that jobs have on each device. Slurm 22.05 names only the devices at a node and the
    sum of all their shards; where the jobs that are seen have another sum, some are hidden, and nothing is changed."""
    taken = Counter[tuple[str, int]]()
    for job in (job for job in jobs if job.state is not JobState.FINISHED):
        for allocation in (part for part in job.allocations if part.shards and len(part.indices) == 1):
            taken[allocation.node, allocation.indices[0]] += allocation.shards
    names = {name for name, _ in taken}
    for node in nodes:
        yield _with_counts(node, taken) if node.name in names else node


def _with_counts(node: Node, taken: Counter[tuple[str, int]]) -> Node:
    cut = {
        gpu.index: replace(gpu, used=_milli_gpu(gpu, taken[node.name, gpu.index])) for gpu in node.gpus if gpu.shards
    }
    cut = {index: gpu for index, gpu in cut.items() if gpu.used}
    off = sum(gpu.used for gpu in cut.values()) - sum(node.gpus[index].used for index in cut)
    if abs(off) >= max(len(cut), 1):  # each device's part is rounded down
        return node
    return replace(node, gpus=tuple(cut.get(gpu.index, gpu) for gpu in node.gpus))


def _milli_gpu(gpu: Gpu, shards: int) -> int:
    return min(MILLI_PER_GPU, MILLI_PER_GPU * shards // gpu.shards)


@dataclass(frozen=True, slots=True)
class SlurmctldConfiguration:
    """Of `scontrol show config`: who Slurm is here. `preempt_exempt_time` in seconds; `private_data` is what ordinary
    users do not see of others; `tracked` are the TRES that accounting counts, as `gres/gpu`."""

    cluster: str
    release: str
    slurm_user: str
    preempt_exempt_time: int = 0
    private_data: frozenset[str] = frozenset()
    tracked_tres: frozenset[str] = frozenset()


def parse_configuration(text: str) -> SlurmctldConfiguration:
    """The settings in the output of `scontrol show config`. Raises NotUnderstoodError."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            settings.setdefault(key.strip(), value.strip())
    if "SLURM_VERSION" not in settings:
        raise SlurmParseError("scontrol show config does not say which release of Slurm this is")
    return SlurmctldConfiguration(
        cluster=settings.get("ClusterName", ""),
        release=settings["SLURM_VERSION"],
        slurm_user=settings.get("SlurmUser", "").partition("(")[0],
        preempt_exempt_time=parse_seconds(settings.get("PreemptExemptTime")) or 0,
        private_data=_names(settings.get("PrivateData", "").lower()) - {"none"},
        tracked_tres=_names(settings.get("AccountingStorageTRES", "").lower()),
    )


def parse_partition(line: str, preempt_exempt_time: int = 0) -> Partition:
    """One line of `scontrol -o show partition`. Raises NotUnderstoodError."""
    fields = parse_fields(line)
    if "PartitionName" not in fields:
        raise SlurmParseError(f"not a partition: {line[:60]!r}")
    return Partition(
        name=fields["PartitionName"],
        nodes=frozenset(expand_hostlist(fields.get("Nodes", ""))),
        up=fields.get("State") == "UP",
        max_time=parse_seconds(fields.get("MaxTime")),
        default=fields.get("Default") == "YES",
        priority_tier=parse_count(fields.get("PriorityTier"), 1),
        preempt_exempt_time=preempt_exempt_time,
    )


def parse_reservation(line: str) -> Reservation:
    """One line of `scontrol -o show reservation`. Raises NotUnderstoodError."""
    fields = parse_fields(line)
    if "ReservationName" not in fields:
        raise SlurmParseError(f"not a reservation: {line[:60]!r}")
    return Reservation(
        name=fields["ReservationName"],
        nodes=frozenset(expand_hostlist(fields.get("Nodes", ""))),
        start=parse_time(fields.get("StartTime")) or 0.0,
        end=parse_time(fields.get("EndTime")) or float("inf"),
        users=_names(fields.get("Users")),
        accounts=_names(fields.get("Accounts")),
    )


def _names(text: str | None) -> frozenset[str]:
    listed: Iterable[str] = or_empty(text).split(",")
    return frozenset(name for name in listed if name)
