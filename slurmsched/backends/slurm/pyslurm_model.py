"""Builds job records, nodes and reservations from pyslurm's values.

Names and comments are separate values, so no user's text can pass for a field. What pyslurm 25.11 does not show in
full, or shows wrongly, is read by commands:

- a job whose values are incomplete (`incomplete_reason` returns why). pyslurm does not show how GPUs are requested (per
  job, node, task or socket; CPUs and memory per GPU): squeue's table does, once for each request;
- a node whose allocated GPUs are not all known. pyslurm shows how many there are, not which; the allocations of jobs
  tell which, unless a job is hidden or completing, or shards are allocated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from slurmsched.backends.slurm.cluster import count_threads, parse_node_state
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import Gres, count_shards, parse_gpus
from slurmsched.backends.slurm.hostlist import expand_hostlist, expand_numbers, parse_ranges
from slurmsched.backends.slurm.jobs import MAX_ARRAY_TASKS, parse_state
from slurmsched.backends.slurm.records import (
    JobRecord,
    RawAllocation,
    fewest_nodes,
    format_time,
    or_empty,
    parse_count,
    parse_tres,
)
from slurmsched.backends.slurm.squeue_table import SqueueRow
from slurmsched.model import MILLI_PER_GPU, Gpu, JobState, Node, Reservation, Resources

PyslurmValues = Mapping[str, Any]
"""A record's values by pyslurm's names; under `unread` the fields that could not be read, with the error class."""

_MAX_CPU_LIST: Final = 127
"""Bytes to which pyslurm cuts the list of CPU ids of a job on a node."""
_ARRAY_FIELDS: Final = frozenset({"array_id", "array_task_id", "array_tasks_waiting"})
_STATES_WITH_NODES: Final = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
_GPU: Final = "gpu"
_REQUEST_FIELDS: Final = (
    "submit_time", "requeue_count", "requested_tres", "gres_per_node", "num_nodes", "max_nodes", "cpus",
    "cpus_per_task", "ntasks", "ntasks_per_node", "sockets_per_node", "memory_per_cpu", "memory_per_node",
    "required_nodes", "excluded_nodes", "constraints", "time_limit",
)  # fmt: skip
_UNSIGNED: Final = 2**32
_MAX_RUN_SECONDS: Final = 2**31
"""Larger run times are negative ones shown as unsigned, as when slurmctld's clock is ahead of this machine's."""


def incomplete_reason(job: PyslurmValues) -> str:
    """Why this job must be read by commands; empty if pyslurm shows all of it."""
    if job["unread"]:
        return f"pyslurm cannot read {', '.join(sorted(job['unread']))}"
    if job["dependencies"] is not None:
        return "pyslurm does not show every dependency"
    state = parse_state(job["state"])
    if state is JobState.FINISHED and array_task(job) == 0 and job["id"] == job["array_id"]:
        return "pyslurm shows task 0 like an array without tasks"
    return _incomplete_layout_reason(job) if state in _STATES_WITH_NODES else ""


def array_task(job: PyslurmValues) -> int | None:
    """The task id of a single task of an array, else None. pyslurm returns None for task 0."""
    if not job["array_id"] or job["array_tasks_waiting"]:
        return None
    return int(job["array_task_id"] or 0)


def request_key(job: PyslurmValues) -> tuple[object, ...]:
    """A key that changes with a job's request, except as `may_change_gpu_type_unseen` tells."""
    return tuple(str(job[key]) for key in _REQUEST_FIELDS)


def may_change_gpu_type_unseen(job: PyslurmValues, request_fields: Mapping[str, str]) -> bool:
    """Whether a user can change the job's GPU type without changing its `request_key`."""
    unseen = ("TresPerJob", "TresPerTask", "TresPerSocket")
    return parse_state(job["state"]) is JobState.PENDING and any(or_empty(request_fields[name]) for name in unseen)


def row_mismatch(job: PyslurmValues, row: SqueueRow) -> str:
    """Why squeue's row does not match pyslurm's values; empty if it does. Raises SlurmParseError."""
    if row.too_long:
        return "squeue truncates its request"
    state = parse_state(job["state"])
    if state is JobState.FINISHED:
        return ""
    amounts = parse_tres(row.text("tres-alloc"))
    shown: Mapping[str, int] = job["allocated_tres" if state in _STATES_WITH_NODES else "requested_tres"]
    counted = {name for name in (*amounts, *shown) if name in ("cpu", "node") or name.startswith("gres/")}
    same = not amounts or all(parse_count(amounts.get(name)) == shown.get(name, 0) for name in counted)
    if job["gres_per_node"]:
        listed = ",".join(f"{name}:{count}" for name, count in job["gres_per_node"].items())
        same = same and set(parse_gpus(listed)) == set(parse_gpus(row.text("tres-per-node")))
    return "" if same else "it changed while it was read"


def tasks_with_records(jobs: Iterable[PyslurmValues]) -> dict[int, set[int]]:
    """The tasks of each array that have their own record; Slurm may also list them among the array's pending tasks."""
    by_array: dict[int, set[int]] = {}
    for job in jobs:
        task = None if job["unread"].keys() & _ARRAY_FIELDS else array_task(job)
        if task is not None:
            by_array.setdefault(job["array_id"], set()).add(task)
    return by_array


def build_record(
    job: PyslurmValues,
    request_fields: Mapping[str, str],
    users: Mapping[str, str],
    threads_per_core: Mapping[str, int],
    separate_tasks: Collection[int] = (),
) -> JobRecord:
    """The job's record. `request_fields` come from squeue; `separate_tasks` are tasks of its array with own records."""
    het = job["heterogeneous_id"] or 0
    tasks = _tasks(job, separate_tasks)
    nice = int(job["nice"] or 0)
    return JobRecord(
        number=str(job["id"]),
        user=users[str(job["user_id"])],
        state=job["state"],
        reason="_".join((job["state_reason"] or "").split()),
        priority=int(job["priority"] or 0),
        nice=nice - _UNSIGNED
        if nice >= _UNSIGNED // 2
        else nice,  # releases up to 24.11 show negative values as unsigned
        account=job["account"] or "",
        qos=job["qos"] or "",
        name=job["name"] or "",
        fields={**request_fields, **_fields(job)},
        allocations=_allocations(job, threads_per_core),
        array_id=str(job["array_id"]) if job["array_id"] and tasks else "",
        array_tasks=tasks,
        throttle=(job["array_tasks_parallel"] or None) if tasks else None,
        het_id=str(het) if het else "",
        het_offset=str(job["heterogeneous_offset"] or 0) if het else "",
        comment=job["comment"] or "",
        admin_comment=job["admin_comment"] or "",
    )


def _incomplete_layout_reason(job: PyslurmValues) -> str:
    layout: Mapping[str, Mapping[str, Any]] = job["layout"]
    if not layout:
        return "pyslurm does not show its allocation"
    if any(len(on_node["cpu_ids"] or "") >= _MAX_CPU_LIST for on_node in layout.values()):
        return "pyslurm truncates the list of its CPUs"
    if any(
        not _is_device(name, detail) for on_node in layout.values() for name, detail in (on_node["gres"] or {}).items()
    ):
        return "pyslurm does not show which devices its shards are on"
    gpus = sum(
        int(detail["count"])
        for on_node in layout.values()
        for name, detail in (on_node["gres"] or {}).items()
        if name.partition(":")[0] == _GPU
    )
    if gpus != job["allocated_tres"].get("gres/gpu", gpus) or (not gpus and job["state"] == "COMPLETING"):
        return "pyslurm does not show all of its GPUs"
    return ""


def _tasks(job: PyslurmValues, separate_tasks: Collection[int]) -> str:
    """The task id, or the pending tasks of this record without those that have their own record."""
    waiting: str = job["array_tasks_waiting"] or ""
    if not waiting:
        task = array_task(job)
        return "" if task is None else str(task)
    if not separate_tasks:
        return waiting
    remaining: list[int] = []
    for span in parse_ranges(waiting.removesuffix("...").rpartition(",")[0] if waiting.endswith("...") else waiting):
        for task in span:
            if len(remaining) > MAX_ARRAY_TASKS:
                return ",".join(map(str, remaining))
            if task not in separate_tasks:
                remaining.append(task)
    if not remaining:
        raise SlurmParseError("all pending tasks of its record have their own record")
    return ",".join(map(str, remaining)) + (",..." if waiting.endswith("...") else "")


def _fields(job: PyslurmValues) -> dict[str, str]:
    """The fields under scontrol's names, as `parse_jobs` expects them."""
    pending = parse_state(job["state"]) is JobState.PENDING
    fewest, most = job["num_nodes"] or 1, job["max_nodes"] or 0
    if pending:
        fewest = fewest_nodes(fewest, most)
    memory = (
        {"MinMemoryCPU": f"{job['memory_per_cpu']}M"}
        if job["memory_per_cpu"]
        else {"MinMemoryNode": f"{job['memory_per_node'] or 0}M"}
    )
    seconds = job["run_time"] if isinstance(job["run_time"], int) and job["run_time"] < _MAX_RUN_SECONDS else 0
    limited = isinstance(job["time_limit"], int)
    ends = limited or parse_state(job["state"]) in (JobState.COMPLETING, JobState.FINISHED)
    limit = {"TimeLimit": f"{job['time_limit']}:00"} if limited else {}  # None is a limit of 0 or no limit
    return (
        memory
        | limit
        | {
            "NumNodes": f"{fewest}-{max(most, fewest)}" if pending else str(fewest),
            "NumCPUs": str(job["cpus"] or 1),
            "NumTasks": str(job["ntasks"] or 1),
            "NtasksPerN:B:S:C": str(job["ntasks_per_node"] or 0),
            "ReqNodeList": job["required_nodes"] or "",
            "ExcNodeList": job["excluded_nodes"] or "",
            "Features": ",".join(job["constraints"] or ()),
            "OverSubscribe": job["resource_sharing"] or "",
            "Partition": job["partition"] or "",
            "Reservation": job["reservation"] or "",
            "BatchFlag": "1" if job["is_batch_job"] else "0",
            "Requeue": "1" if job["is_requeueable"] else "0",
            "Restarts": str(job["requeue_count"] or 0),
            "SubmitTime": _time_text(job["submit_time"]),
            "EligibleTime": _time_text(job["eligible_time"]),
            "StartTime": _time_text(job["start_time"]),
            "EndTime": _time_text(
                job["end_time"] if ends else None
            ),  # Slurm sets an end in a year for jobs without a limit
            "RunTime": f"0:{seconds // 60}:{seconds % 60}",
            "ReqTRES": ",".join(f"{name}={amount}" for name, amount in job["requested_tres"].items()),
        }
    )


def _allocations(job: PyslurmValues, threads: Mapping[str, int]) -> tuple[RawAllocation, ...]:
    """The allocation on each node. pyslurm's CPU ids are cores; `threads` is the number of CPUs per core by node."""
    if parse_state(job["state"]) not in _STATES_WITH_NODES:
        return ()
    allocations = []
    for node, on_node in job["layout"].items():
        cpus = len(expand_numbers(on_node["cpu_ids"] or "")) * threads[node]
        gres = ",".join(_gres(name, detail) for name, detail in (on_node["gres"] or {}).items())
        allocations.append(RawAllocation(node, f"0-{cpus - 1}" if cpus else "", f"{on_node['memory'] or 0}M", gres))
    return tuple(allocations)


def _gres(name: str, detail: Any) -> str:
    if isinstance(detail, Mapping):
        return f"{name}:{detail['count']}(IDX:{detail['indexes']})"
    return f"{name}:{detail}"


def _is_device(name: str, detail: Any) -> bool:
    """Whether pyslurm shows the devices of this GRES, or the GRES is not shared."""
    kind = name.partition(":")[0]
    return isinstance(detail, Mapping) if kind == _GPU else kind not in ("shard", "mps")


def _time_text(at: int | None) -> str:
    return format_time(at) if at else "Unknown"


_SHARED_GRES: Final = ("gres/shard", "gres/mps")


def allocated_devices(records: Iterable[JobRecord]) -> dict[str, set[int]]:
    """The GPU indices allocated to jobs on each node, as far as pyslurm shows them."""
    by_node: defaultdict[str, set[int]] = defaultdict(set)
    for record in records:
        for allocation in record.allocations:
            with suppress(SlurmParseError):  # the job is set aside, and the node is read by commands
                devices = {index for entry in parse_gpus(allocation.gres) for index in entry.indices}
                for node in expand_hostlist(allocation.nodes) if devices else ():
                    by_node[node] |= devices
    return by_node


def build_node(values: PyslurmValues, allocated_gpus: Iterable[int], tracked_tres: Collection[str]) -> Node | None:
    """The node with these GPUs allocated; None if it must be read by commands.

    `tracked_tres` are the TRES that accounting counts: pyslurm shows no allocated amount of the others.
    """
    if values["unread"]:
        return None
    configured = _configured_gres(values)
    entries = parse_gpus(configured)
    types = [entry.type for entry in entries for _ in range(entry.count)]
    devices = {index for index in allocated_gpus if index < len(types)}
    allocated: Mapping[str, str | int] = values["allocated_tres"] or {}
    in_use = int(allocated.get("gres/gpu", 0))
    required = {"gres/gpu"} | {name for name in _SHARED_GRES if name.removeprefix("gres/") in configured}
    hidden = types and values["allocated_cpus"] and not required <= set(tracked_tres)
    if hidden or len(devices) != in_use or any(int(allocated.get(name, 0)) for name in _SHARED_GRES):
        return None
    shards_per_gpu = count_shards(configured) // len(types) if types else 0
    gpus = tuple(
        Gpu(index, kind, MILLI_PER_GPU * (index in devices), shards_per_gpu) for index, kind in enumerate(types)
    )
    return Node(
        name=values["name"],
        gpus=gpus,
        total=_total(values, entries),
        used=Resources(len(devices), values["allocated_cpus"] or 0, values["allocated_memory"] or 0),
        state=parse_node_state(values["state"] or "UNKNOWN"),
        state_text=values["state"] or "UNKNOWN",
        features=frozenset(values["active_features"] or ()),
        partitions=frozenset(values["partitions"] or ()),
        reason=values["reason"] or "",
        weight=values["weight"] or 0,
        reservation="",
        sockets=values["sockets"] or 1,
        cores_per_socket=values["cores_per_socket"] or 0,
        threads_per_core=node_threads(values),
    )


def node_threads(values: PyslurmValues) -> int:
    """The CPUs of each core of the node; 1 where that is not known."""
    cores = (values["sockets"] or 1) * (values["cores_per_socket"] or 0)
    return count_threads(values["total_cpus"] or 0, cores)


def node_totals(nodes: Iterable[PyslurmValues]) -> list[Resources]:
    """The total resources of each node; an empty list if one of them cannot be read."""
    known = tuple(nodes)
    if any(values["unread"] for values in known):
        return []
    try:
        return [_total(values, parse_gpus(_configured_gres(values))) for values in known]
    except (SlurmParseError, TypeError, AttributeError):
        return []


def _configured_gres(values: PyslurmValues) -> str:
    return ",".join(f"{name}:{count}" for name, count in (values["configured_gres"] or {}).items())


def _total(values: PyslurmValues, gpus: Iterable[Gres]) -> Resources:
    return Resources(
        sum(entry.count for entry in gpus),
        values["effective_cpus"] or values["total_cpus"] or 0,
        (values["real_memory"] or 0) - (values["memory_reserved_for_system"] or 0),
    )


def build_reservation(values: PyslurmValues) -> Reservation:
    """The reservation, with times in unix seconds. Raises SlurmParseError."""
    _require_complete(values)
    flags = frozenset(values["flags"])
    return Reservation(
        name=values["name"],
        nodes=frozenset(expand_hostlist(values["nodes"] or "")),
        start=float(values["start_time"] or 0),
        end=float(values["end_time"] or "inf"),
        users=frozenset(filter(None, values["users"] or ())),
        accounts=frozenset(filter(None, values["accounts"] or ())),
        maintenance="MAINTENANCE" in flags,
        flex="FLEX" in flags,
        magnetic="MAGNETIC" in flags,
    )


def _require_complete(values: PyslurmValues) -> None:
    if values["unread"]:
        raise SlurmParseError(f"pyslurm cannot read {', '.join(sorted(values['unread']))}")
