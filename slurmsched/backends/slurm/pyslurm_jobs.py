"""Jobs as pyslurm's values, as records.

Names and comments come as values, so nobody's words can pass for fields. What pyslurm 25.11 does not tell, or tells
wrongly, is known here: such a job alone is read by commands, and `why_by_commands` says why. How GPUs were asked for
(per job, node, task or socket; CPUs and memory per GPU) it never tells whole: that comes from squeue's table, once for
each request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import parse_gpus
from slurmsched.backends.slurm.hostlist import expand_numbers, parse_ranges
from slurmsched.backends.slurm.jobs import MAX_ARRAY_TASKS, parse_state
from slurmsched.backends.slurm.pyslurm_poll import PyslurmValues
from slurmsched.backends.slurm.records import JobRecord, RawAllocation, or_empty, parse_count, parse_tres
from slurmsched.backends.slurm.squeue_table import SqueueRow
from slurmsched.model import JobState

_LONGEST_LIST: Final = 127
"""Bytes that pyslurm has for the CPU numbers of a job on a node: a longer list comes cut."""
_ARRAY_FIELDS: Final = frozenset({"array_id", "array_task_id", "array_tasks_waiting"})
_STATES_WITH_NODES: Final = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
_DEVICES: Final = "gpu"
_REQUEST_FIELDS: Final = (
    "submit_time", "requeue_count", "requested_tres", "gres_per_node", "num_nodes", "max_nodes", "cpus",
    "cpus_per_task", "ntasks", "ntasks_per_node", "sockets_per_node", "memory_per_cpu", "memory_per_node",
    "required_nodes", "excluded_nodes", "constraints", "time_limit",
)  # fmt: skip
_UNSIGNED: Final = 2**32
_LONGEST_RUN: Final = 2**31
"""No job runs for so many seconds: a time below zero comes unsigned, as where slurmctld's clock is ahead of ours."""


def incomplete_reason(job: PyslurmValues) -> str:
    """Why this job has to be read by commands; empty where pyslurm tells all of it."""
    if job["unread"]:
        return f"pyslurm cannot read {', '.join(sorted(job['unread']))}"
    if job["dependencies"] is not None:
        return "pyslurm does not show every dependency"
    state = parse_state(job["state"])
    if state is JobState.FINISHED and array_task(job) == 0 and job["id"] == job["array_id"]:
        return "pyslurm shows task 0 like an array without tasks"
    return _incomplete_layout_reason(job) if state in _STATES_WITH_NODES else ""


def array_task(job: PyslurmValues) -> int | None:
    """Its number where it is one task of an array. pyslurm shows a 0 as None."""
    if not job["array_id"] or job["array_tasks_waiting"]:
        return None
    return int(job["array_task_id"] or 0)


def request_key(job: PyslurmValues) -> tuple[object, ...]:
    """What changes with the way in which a job asks for GPUs, but where `may_change_unseen`."""
    return tuple(str(job[key]) for key in _REQUEST_FIELDS)


def may_change_gpu_type_unseen(job: PyslurmValues, asked: Mapping[str, str]) -> bool:
    """Whether its owner can ask for another type of GPU without a sign of it in `request_key`."""
    elsewhere = ("TresPerJob", "TresPerTask", "TresPerSocket")
    return parse_state(job["state"]) is JobState.PENDING and any(or_empty(asked[name]) for name in elsewhere)


def row_mismatch(job: PyslurmValues, row: SqueueRow) -> str:
    """Why squeue's row is not of the same request as pyslurm's values; empty where it is. Raises SlurmParseError."""
    if row.too_long:
        return "squeue cuts what it asks for"
    state = parse_state(job["state"])
    if state is JobState.FINISHED:
        return ""
    amounts = parse_tres(row.text("tres-alloc"))
    shown: Mapping[str, int] = job["allocated_tres" if state in _STATES_WITH_NODES else "requested_tres"]
    counted = {name for name in (*amounts, *shown) if name in ("cpu", "node") or name.startswith("gres/")}
    alike = not amounts or all(parse_count(amounts.get(name)) == shown.get(name, 0) for name in counted)
    if job["gres_per_node"]:
        listed = ",".join(f"{name}:{count}" for name, count in job["gres_per_node"].items())
        alike = alike and set(parse_gpus(listed)) == set(parse_gpus(row.text("tres-per-node")))
    return "" if alike else "it changed between two looks"


def tasks_with_records(jobs: Iterable[PyslurmValues]) -> dict[int, set[int]]:
    """By array the tasks that have a record of their own: Slurm may count them among those that wait as well."""
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
    """The record. `asked` is squeue's word on its request, `threads` CPUs per core by node, `apart` tasks of its array
    that have a record of their own."""
    het = job["heterogeneous_id"] or 0
    tasks = _tasks(job, separate_tasks)
    nice = int(job["nice"] or 0)
    return JobRecord(
        number=str(job["id"]),
        user=users[str(job["user_id"])],
        state=job["state"],
        reason="_".join((job["state_reason"] or "").split()),
        priority=int(job["priority"] or 0),
        nice=nice - _UNSIGNED if nice >= _UNSIGNED // 2 else nice,  # up to 24.11 negative ones come unsigned
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
        return "pyslurm does not show what it has on its nodes"
    if any(len(there["cpu_ids"] or "") >= _LONGEST_LIST for there in layout.values()):
        return "pyslurm cuts the list of its CPUs"
    if any(not _is_device(name, detail) for there in layout.values() for name, detail in (there["gres"] or {}).items()):
        return "pyslurm does not show which devices its shards are on"
    gpus = sum(
        int(detail["count"])
        for there in layout.values()
        for name, detail in (there["gres"] or {}).items()
        if name.partition(":")[0] == _DEVICES
    )
    if gpus != job["allocated_tres"].get("gres/gpu", gpus) or (not gpus and job["state"] == "COMPLETING"):
        return "pyslurm does not show all of its GPUs"
    return ""


def _tasks(job: PyslurmValues, separate_tasks: Collection[int]) -> str:
    """The task's number, or those that wait in this record without those that have one of their own."""
    waiting: str = job["array_tasks_waiting"] or ""
    if not waiting:
        task = array_task(job)
        return "" if task is None else str(task)
    if not separate_tasks:
        return waiting
    left: list[int] = []
    for span in parse_ranges(waiting.removesuffix("...").rpartition(",")[0] if waiting.endswith("...") else waiting):
        for task in span:
            if len(left) > MAX_ARRAY_TASKS:
                return ",".join(map(str, left))
            if task not in separate_tasks:
                left.append(task)
    if not left:
        raise SlurmParseError("all tasks that wait in its record have one of their own")
    return ",".join(map(str, left)) + (",..." if waiting.endswith("...") else "")


def _fields(job: PyslurmValues) -> dict[str, str]:
    """In scontrol's words, so that one reader makes jobs of both."""
    pending = parse_state(job["state"]) is JobState.PENDING
    fewest = job["num_nodes"] or 1
    memory = (
        {"MinMemoryCPU": f"{job['memory_per_cpu']}M"}
        if job["memory_per_cpu"]
        else {"MinMemoryNode": f"{job['memory_per_node'] or 0}M"}
    )
    seconds = job["run_time"] if isinstance(job["run_time"], int) and job["run_time"] < _LONGEST_RUN else 0
    limited = isinstance(job["time_limit"], int)
    ends = limited or parse_state(job["state"]) in (JobState.COMPLETING, JobState.FINISHED)
    limit = {"TimeLimit": f"{job['time_limit']}:00"} if limited else {}  # None is a limit of 0, or no limit
    return (
        memory
        | limit
        | {
            "NumNodes": f"{fewest}-{max(job['max_nodes'] or 0, fewest)}" if pending else str(fewest),
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
            "SubmitTime": _format_time(job["submit_time"]),
            "EligibleTime": _format_time(job["eligible_time"]),
            "StartTime": _format_time(job["start_time"]),
            "EndTime": _format_time(job["end_time"] if ends else None),  # Slurm notes a year for what has no limit
            "RunTime": f"0:{seconds // 60}:{seconds % 60}",
            "ReqTRES": ",".join(f"{name}={amount}" for name, amount in job["requested_tres"].items()),
        }
    )


def _allocations(job: PyslurmValues, threads: Mapping[str, int]) -> tuple[RawAllocation, ...]:
    """What it has on each node. pyslurm counts cores and calls them CPUs: a core has as many as the node says."""
    if parse_state(job["state"]) not in _STATES_WITH_NODES:
        return ()
    allocations = []
    for node, there in job["layout"].items():
        cpus = len(expand_numbers(there["cpu_ids"] or "")) * threads[node]
        gres = ",".join(_gres(name, detail) for name, detail in (there["gres"] or {}).items())
        allocations.append(RawAllocation(node, f"0-{cpus - 1}" if cpus else "", f"{there['memory'] or 0}M", gres))
    return tuple(allocations)


def _gres(name: str, detail: Any) -> str:
    if isinstance(detail, Mapping):
        return f"{name}:{detail['count']}(IDX:{detail['indexes']})"
    return f"{name}:{detail}"


def _is_device(name: str, detail: Any) -> bool:
    """Whether it says which devices, or is nothing of which a job has a part."""
    kind = name.partition(":")[0]
    return isinstance(detail, Mapping) if kind == _DEVICES else kind not in ("shard", "mps")


def _format_time(at: int | None) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") if at else "Unknown"
