"""Parses nodes, partitions, reservations and slurmctld's configuration as scontrol prints them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypedDict

from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import Gres, count_shards, parse_gpus, parse_gres
from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.backends.slurm.rate_limit import RateLimit, parse_rate_limit
from slurmsched.backends.slurm.records import (
    or_empty,
    parse_count,
    parse_fields,
    parse_mebibytes,
    parse_seconds,
    parse_time,
    parse_tres,
)
from slurmsched.model import (
    MILLI_PER_GPU,
    Gpu,
    Job,
    JobState,
    Node,
    NodeState,
    Partition,
    Reservation,
    Resources,
    release_number,
)

_AFTER_REASON = re.compile(r" (?:Comment|Extra|InstanceId|InstanceType|ReservationName)=")
_FREE_TEXT: Final = re.compile(r" (?:Reason|Comment|Extra)=")

_DOWN: Final = frozenset({"DOWN", "UNKNOWN", "FUTURE", "ERROR", "INVAL", "INVALID", "INVALID_REG", "NOT_RESPONDING"})
_DRAINING: Final = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "BLOCKED", "EXTERNAL"})
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
    """Parses one line of `scontrol -d -o show node`. Raises SlurmParseError."""
    free_text = _FREE_TEXT.search(line)
    fields = parse_fields(line[: free_text.start()] if free_text else line)
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
        sockets=parse_count(fields.get("Sockets"), 1),
        cores_per_socket=(cores := parse_count(fields.get("CoresPerSocket"))),
        threads_per_core=count_threads(
            parse_count(fields.get("CPUTot")), parse_count(fields.get("Sockets"), 1) * cores
        ),
    )


def count_threads(cpus: int, cores: int) -> int:
    """The CPUs of a core. Slurm shows the threads of the hardware even where it counts cores as CPUs."""
    return max(cpus // cores, 1) if cores > 0 else 1


def with_cpu_units(node: Node, select_parameters: Collection[str]) -> Node:
    """The node with what Slurm gives of its CPUs together, by the words of SelectTypeParameters.

    With CR_CPU a job also gets whole cores, as the node's hardware is known, but is charged for single CPUs.
    """
    by_socket = not {"CR_SOCKET", "CR_SOCKET_MEMORY"}.isdisjoint(select_parameters)
    by_cpu = not {"CR_CPU", "CR_CPU_MEMORY"}.isdisjoint(select_parameters)
    unit = node.threads_per_core * (max(node.cores_per_socket, 1) if by_socket else 1)
    return node if unit == 1 else replace(node, cpu_unit=unit, bills_cpus=by_cpu)


def _reason(line: str) -> str:
    """The reason why a node is down or drained, without the user and time that Slurm appends."""
    text = _AFTER_REASON.split(line.partition(" Reason=")[2], maxsplit=1)[0].rstrip()
    reason, bracket, author = text.rpartition(" [")
    return reason if bracket and author.endswith("]") else text


def parse_node_state(text: str) -> NodeState:
    """The state of `MIXED+DRAIN` or `DOWN*`. Flags match whole: Slurm powers up POWERED_DOWN nodes, not DOWN ones.

    A node in maintenance is up: it is reserved then, and jobs of that reservation start. One that is powered down has
    nothing that could respond, and jobs power it up, also where it did not respond before it was drained and resumed.
    """
    flags = set(text.upper().rstrip("".join(_STATE_SUFFIXES) + "~#-+").split("+"))
    flags |= {_STATE_SUFFIXES[sign] for sign in text if sign in _STATE_SUFFIXES}
    if "~" in text or "POWERED_DOWN" in flags:
        flags.discard("NOT_RESPONDING")
    if flags & _DOWN:
        return NodeState.DOWN
    return NodeState.DRAINED if flags & (_DRAINING | _LEAVING) else NodeState.UP


def _parse_gpus(fields: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs in configured order, numbered across types, with the allocated milli-GPU of each."""
    configured = parse_gpus(fields.get("Gres"))
    types = [entry.type for entry in configured for _ in range(entry.count)]
    shards_per_gpu = count_shards(fields.get("Gres")) // len(types) if types else 0
    used = [0] * len(types)
    shards = parse_count(parse_tres(fields.get("AllocTRES")).get("gres/shard"))
    for entry in parse_gres(fields.get("GresUsed")):
        if entry.name == "gpu":
            for index in _devices(entry, types):
                used[index] = MILLI_PER_GPU
        elif entry.name == "shard":
            for index, milli_gpu in _milli_gpu_of_shards(entry, types, shards_per_gpu, shards):
                used[index] = min(MILLI_PER_GPU, used[index] + milli_gpu)
    return tuple(Gpu(index, kind, used[index], shards_per_gpu) for index, kind in enumerate(types))


def _devices(entry: Gres, types: list[str]) -> tuple[int, ...]:
    """The indices of the GPUs in use; the first of the type where Slurm shows only a count."""
    if entry.indices:
        return tuple(index for index in entry.indices if index < len(types))
    alike = [index for index, kind in enumerate(types) if kind == entry.type or not entry.type]
    return tuple(alike[: entry.count])


def _milli_gpu_of_shards(entry: Gres, types: list[str], shards_per_gpu: int, shards: int) -> list[tuple[int, int]]:
    """(GPU index, milli-GPU) of allocated shards. 22.05 shows only the GPUs: the node's shards are split evenly."""
    if entry.shards_by_device:
        alike = [index for index, kind in enumerate(types) if kind == entry.type or not entry.type]
        indices = range(len(types)) if len(entry.shards_by_device) == len(types) else alike
        shared = zip(indices, entry.shards_by_device, strict=False)  # counts beyond the node's GPUs are ignored
        return [(index, MILLI_PER_GPU * taken // total) for index, (taken, total) in shared if total and taken]
    in_use = [index for index in entry.indices if index < len(types)]
    if not in_use:
        return []
    each = MILLI_PER_GPU * shards // (shards_per_gpu * len(in_use)) if shards_per_gpu and shards else MILLI_PER_GPU
    return [(index, max(1, min(MILLI_PER_GPU, each))) for index in in_use]


def count_shards_by_job(nodes: Iterable[Node], jobs: Iterable[Job]) -> Iterator[Node]:
    """The nodes, with each GPU's usage counted from the shards of jobs, as Slurm 22.05 shows only a node's sum.

    A node is left unchanged where the visible jobs do not account for that sum: some jobs are hidden then."""
    taken = Counter[tuple[str, int]]()
    for job in (job for job in jobs if job.state is not JobState.FINISHED):
        for allocation in (share for share in job.allocations if share.shards and len(share.indices) == 1):
            taken[allocation.node, allocation.indices[0]] += allocation.shards
    names = {name for name, _ in taken}
    for node in nodes:
        yield _with_counts(node, taken) if node.name in names else node


def _with_counts(node: Node, taken: Counter[tuple[str, int]]) -> Node:
    shared = {
        gpu.index: replace(gpu, used=_milli_gpu(gpu, taken[node.name, gpu.index])) for gpu in node.gpus if gpu.shards
    }
    shared = {index: gpu for index, gpu in shared.items() if gpu.used}
    difference = sum(gpu.used for gpu in shared.values()) - sum(node.gpus[index].used for index in shared)
    if abs(difference) >= max(len(shared), 1):  # each GPU's milli-GPU is rounded down
        return node
    return replace(node, gpus=tuple(shared.get(gpu.index, gpu) for gpu in node.gpus))


def _milli_gpu(gpu: Gpu, shards: int) -> int:
    return min(MILLI_PER_GPU, MILLI_PER_GPU * shards // gpu.shards)


@dataclass(frozen=True, slots=True)
class SlurmctldConfiguration:
    """Settings of `scontrol show config`. `preempt_exempt_time` is in seconds, `private_data` what users do not see of
    other users; `tracked_tres` are the TRES that accounting counts, such as `gres/gpu`; `select_parameters` are the
    words of SelectTypeParameters, such as `CR_CORE_MEMORY`; the amounts are as in `Partition`. `preempts_by` is
    `partition_prio`, `qos` or empty, as PreemptType says; `preempts_within_qos` whether PreemptMode has WITHIN."""

    cluster: str
    release: str
    slurm_user: str
    preempt_exempt_time: int = 0
    private_data: frozenset[str] = frozenset()
    tracked_tres: frozenset[str] = frozenset()
    enforces_limits: bool = False
    select_parameters: frozenset[str] = frozenset()
    cpus_per_gpu: int = 0
    memory_per_gpu: int = 0
    memory_per_cpu: int = 0
    preempts_by: str = ""
    preempts_within_qos: bool = False
    rate_limit: RateLimit | None = None
    """Of the requests of each user but SlurmUser and root; None without rl_enable."""

    @property
    def schedules_memory(self) -> bool:
        """Whether jobs get memory of their own; also where the configuration does not tell."""
        return not self.select_parameters or any("MEMORY" in word for word in self.select_parameters)

    @property
    def widens_shards(self) -> bool:
        """Whether a pending job can be given all shards of its GPU instead of some, by an update.

        Measured on 24.11 and 26.05. On 22.05 more than half of a GPU's shards are taken from two GPUs, as everywhere
        with MULTIPLE_SHARING_GRES_PJ.
        """
        number = release_number(self.release)
        return number is not None and number >= _WIDENS_SHARDS_SINCE and not self.takes_shards_of_several_gpus

    @property
    def takes_shards_of_several_gpus(self) -> bool:
        """Whether Slurm may take the shards of one job on a node from several GPUs."""
        return "MULTIPLE_SHARING_GRES_PJ" in self.select_parameters


_WIDENS_SHARDS_SINCE: Final = (23, 11)
"""The first release that keeps the shards of a job on one GPU, however many."""

_ENFORCING_LIMITS: Final = frozenset({"limits", "safe", "all"})
"""Words of AccountingStorageEnforce."""


def parse_configuration(text: str) -> SlurmctldConfiguration:
    """Parses the output of `scontrol show config`. Raises SlurmParseError."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            settings.setdefault(key.strip(), value.strip())
    if "SLURM_VERSION" not in settings:
        raise SlurmParseError("scontrol show config prints no SLURM_VERSION")
    return SlurmctldConfiguration(
        cluster=settings.get("ClusterName", ""),
        release=settings["SLURM_VERSION"],
        slurm_user=settings.get("SlurmUser", "").partition("(")[0],
        preempt_exempt_time=parse_seconds(settings.get("PreemptExemptTime")) or 0,
        private_data=_names(settings.get("PrivateData", "").lower()) - {"none"},
        tracked_tres=_names(settings.get("AccountingStorageTRES", "").lower()),
        memory_per_cpu=_limit(settings.get("DefMemPerCPU")) or 0,
        **_job_defaults(settings.get("JobDefaults")),
        select_parameters=_names(settings.get("SelectTypeParameters", "").upper()),
        preempts_by=or_empty(settings.get("PreemptType")).lower().removeprefix("preempt/").removeprefix("none"),
        rate_limit=parse_rate_limit(settings.get("SlurmctldParameters", "")),
        preempts_within_qos="WITHIN" in _names(settings.get("PreemptMode", "").upper()),
        enforces_limits=bool(_names(settings.get("AccountingStorageEnforce", "").lower()) & _ENFORCING_LIMITS),
    )


def parse_partition(line: str, preempt_exempt_time: int = 0) -> Partition:
    """Parses one line of `scontrol -o show partition`. Raises SlurmParseError."""
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
        max_cpus_per_node=_limit(fields.get("MaxCPUsPerNode")),
        max_memory_per_node=_limit(fields.get("MaxMemPerNode")),
        max_nodes=_limit(fields.get("MaxNodes")),
        qos=or_empty(fields.get("QoS")),
        accounts=_admitted(fields.get("AllowAccounts")),
        denied_accounts=_names(fields.get("DenyAccounts")),
        admitted_qos=_admitted(fields.get("AllowQos")),
        denied_qos=_names(fields.get("DenyQos")),
        memory_per_cpu=_limit(fields.get("DefMemPerCPU")) or 0,
        sharing=_sharing(fields),
        preempt_mode=or_empty(fields.get("PreemptMode")).upper() or "OFF",
        **_job_defaults(fields.get("JobDefaults")),
    )


def _sharing(fields: Mapping[str, str]) -> str:
    """As in `Partition`. With FORCE:1 each CPU has one job; Slurm 26.05 shows whole nodes as `Exclusive=NODE`."""
    oversubscribe, exclusive = fields.get("OverSubscribe", "").upper(), fields.get("Exclusive", "").upper()
    if oversubscribe == "EXCLUSIVE" or exclusive == "NODE":
        return "EXCLUSIVE"
    if oversubscribe.startswith("FORCE") and oversubscribe != "FORCE:1":
        return oversubscribe
    by_kind = {kind: fields.get(f"Exclusive{kind.capitalize()}", "") for kind in ("USER", "TOPO")}
    return next((kind for kind, shown in by_kind.items() if shown == "YES"), exclusive.removeprefix("NO"))


def _admitted(text: str | None) -> frozenset[str] | None:
    """The names of a list; None for all."""
    return None if text is None or text.upper() == "ALL" else _names(text)


def with_job_defaults(partition: Partition, configuration: SlurmctldConfiguration) -> Partition:
    """The partition with the cluster's defaults for jobs where it has none of its own."""
    return replace(
        partition,
        cpus_per_gpu=partition.cpus_per_gpu or configuration.cpus_per_gpu,
        memory_per_gpu=partition.memory_per_gpu or configuration.memory_per_gpu,
        memory_per_cpu=partition.memory_per_cpu or configuration.memory_per_cpu,
    )


def with_preemption(partitions: Iterable[Partition], configuration: SlurmctldConfiguration) -> dict[str, Partition]:
    """The partitions by name; with preempt/partition_prio Slurm preempts for jobs of a higher tier those on common
    nodes, where their partition does not forbid it."""
    known = tuple(partitions)
    if configuration.preempts_by != "partition_prio":
        return {partition.name: partition for partition in known}
    preemptible = [partition for partition in known if partition.preempt_mode != "OFF"]
    return {
        partition.name: replace(
            partition,
            preempts=any(
                other.priority_tier < partition.priority_tier and not other.nodes.isdisjoint(partition.nodes)
                for other in preemptible
            ),
        )
        for partition in known
    }


class _JobDefaults(TypedDict):
    cpus_per_gpu: int
    memory_per_gpu: int


def _job_defaults(text: str | None) -> _JobDefaults:
    """CPUs and MiB per GPU of `DefCpuPerGPU=3,DefMemPerGPU=2000`."""
    given = parse_tres(text)
    return _JobDefaults(
        cpus_per_gpu=_limit(given.get("DefCpuPerGPU")) or 0, memory_per_gpu=_limit(given.get("DefMemPerGPU")) or 0
    )


def _limit(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def parse_reservation(line: str) -> Reservation:
    """Parses one line of `scontrol -o show reservation`. Raises SlurmParseError."""
    fields = parse_fields(line)
    if "ReservationName" not in fields:
        raise SlurmParseError(f"not a reservation: {line[:60]!r}")
    flags = _names(fields.get("Flags"))
    return Reservation(
        name=fields["ReservationName"],
        nodes=frozenset(expand_hostlist(fields.get("Nodes", ""))),
        start=parse_time(fields.get("StartTime")) or 0.0,
        end=parse_time(fields.get("EndTime")) or float("inf"),
        users=_names(fields.get("Users")),
        accounts=_names(fields.get("Accounts")),
        maintenance="MAINT" in flags,
        flex="FLEX" in flags,
        magnetic="MAGNETIC" in flags,
    )


def _names(text: str | None) -> frozenset[str]:
    listed: Iterable[str] = or_empty(text).split(",")
    return frozenset(name for name in listed if name)
