"""Holds the readers of one queue against each other, on a login node: `python3 agreeing.py` prints JSON.

By job, node, partition and reservation the fields in which pyslurm differs from commands, and those in which each of
the two differs from what `squeue --json` says. What changed between two polls by commands is left out, as all of them
look at a queue that moves.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.pyslurm_source import PyslurmSource
from slurmsched.model import Job, JobState, Request, Snapshot

LIVE: Final = frozenset({"PENDING", "RUNNING"})
REQUESTED: Final = ("original_request", "current_request", "throttle")
"""What nobody goes by of a job that has ended, and squeue shows only in part."""
KINDS: Final = ("jobs", "nodes", "partitions", "reservations", "set_aside")


def main() -> int:
    """The exit code."""
    by_commands = SlurmBackend(Commands(60), CommandSource(), time.time)
    by_pyslurm = SlurmBackend(Commands(60), PyslurmSource(time.time, 4096, required=True), time.time)
    peaks: dict[str, int] = {}
    before, seconds = timed(by_commands)
    peaks["commands"] = peak_of_children()
    found, pyslurm_seconds = timed(by_pyslurm)
    after, again = timed(by_commands)
    _, pyslurm_again = timed(by_pyslurm)
    peaks["pyslurm or less"] = peak_of_children()
    shown, json_seconds, size = squeue_json()
    peaks["json or less"] = peak_of_children()
    steady = {kind: differing(kind, before, after) for kind in KINDS}
    differences = {
        kind: {
            name: {field: values for field, values in there.items() if field not in steady[kind].get(name, ())}
            for name, there in differing(kind, after, found).items()
        }
        for kind in KINDS
    }
    ended = {job.id for job in found.jobs if job.state is JobState.FINISHED}
    told = {
        "differences": {kind: {name: one for name, one in there.items() if one} for kind, there in differences.items()},
        "json": {
            "commands": against_json(after, shown, steady["jobs"]),
            "pyslurm": against_json(found, shown, steady["jobs"]),
        },
        "forms": {
            job: [repr(by_commands._forms[job]), repr(by_pyslurm._forms.get(job))]
            for job in by_commands._forms
            if by_commands._forms[job] != by_pyslurm._forms.get(job) and job not in ended
        },
        "jobs": len(found.jobs),
        "compared_with_json": sum(job.id in shown for job in found.jobs),
        "remarks": by_pyslurm.remarks,
        "oddities": found.oddities,
        "seconds": {
            "commands": [seconds, again],
            "pyslurm": [pyslurm_seconds, pyslurm_again],
            "json": json_seconds,
        },
        "json_mib": size,
        "peak_mib_of_children": peaks,
    }
    sys.stdout.write(json.dumps(told, default=str))
    return 0


def timed(backend: SlurmBackend) -> tuple[Snapshot, float]:
    start = time.perf_counter()
    return backend.observe(), time.perf_counter() - start


def peak_of_children() -> int:
    """MiB of the largest process that has been run so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


def differing(kind: str, one: Snapshot, other: Snapshot) -> dict[str, dict[str, list[Any]]]:
    """By name and field what the two snapshots say."""
    left, right = by_name(kind, one), by_name(kind, other)
    found: dict[str, dict[str, list[Any]]] = {}
    for name in left.keys() | right.keys():
        if name not in left or name not in right:
            found[name] = {"exists": [name in left, name in right]}
            continue
        differing_fields = unlike(left[name], right[name])
        if differing_fields:
            found[name] = differing_fields
    return found


def by_name(kind: str, snapshot: Snapshot) -> dict[str, Any]:
    return {
        str(getattr(one, "name" if kind not in ("jobs", "set_aside") else "id" if kind == "jobs" else "job")): one
        for one in getattr(snapshot, kind)
    }


def unlike(one: Any, other: Any) -> dict[str, list[Any]]:
    if not is_dataclass(one):
        return {} if one == other else {"value": [one, other]}
    ended = isinstance(one, Job) and one.state is other.state is JobState.FINISHED
    found: dict[str, list[Any]] = {}
    for name in (field.name for field in fields(one)):
        left, right = getattr(one, name), getattr(other, name)
        if ended and name in REQUESTED:
            continue
        if isinstance(left, Request):
            found |= {f"{name}.{key}": pair for key, pair in unlike(left, right).items()}
        elif not alike(name, left, right):
            found[name] = [left, right]
    return found


def alike(name: str, one: Any, other: Any) -> bool:
    if name == "run_time":
        return bool(abs(one - other) <= 10)
    if name == "priority":
        return bool((one == 0) == (other == 0))
    if name == "reason":  # of an array squeue lists those of all records that wait
        return other in one.split(",")
    if name in ("name", "comment"):  # squeue's columns are filled up with blanks, so those at the end are not seen
        return bool(one.rstrip(" ") == other.rstrip(" "))
    return bool(one == other)


def squeue_json() -> tuple[dict[str, Mapping[str, Any]], float, float]:
    """By id, as the model has it, what squeue says; the seconds this took, and its size in MiB."""
    start = time.perf_counter()
    said = subprocess.run(["squeue", "--json", "-a", "-t", "all"], capture_output=True, check=True).stdout
    records = json.loads(said.decode(errors="replace"))["jobs"]
    seconds = time.perf_counter() - start
    return {job_id(record): record for record in records}, seconds, len(said) / 2**20


def job_id(record: Mapping[str, Any]) -> str:
    if number(record["array_job_id"]) and record["array_task_id"]["set"]:
        return f"{number(record['array_job_id'])}_{number(record['array_task_id'])}"
    if number(record["het_job_id"]):
        return f"{number(record['het_job_id'])}+{number(record['het_job_offset']) or 0}"
    return str(record["job_id"])


def number(value: Any) -> int | None:
    """A number of Slurm's JSON: unset and infinite are None."""
    if not isinstance(value, Mapping):
        return int(value)
    return int(value["number"]) if value["set"] and not value["infinite"] else None


def against_json(snapshot: Snapshot, shown: Mapping[str, Mapping[str, Any]], steady: Mapping[str, Any]) -> Any:
    """By job and field what the snapshot says and what JSON says."""
    found = {}
    for job in snapshot.jobs:
        if job.id not in shown:
            continue  # of an array that waits only one record stands for all tasks
        expected = in_model(shown[job.id])
        here = of_job(job)
        different = {key: [here[key], expected[key]] for key in expected if not alike(key, here[key], expected[key])}
        different = {key: pair for key, pair in different.items() if key not in steady.get(job.id, ())}
        if different:
            found[job.id] = different
    return found


def in_model(record: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON says in the model's words, as far as it says it in one."""
    limit = number(record["time_limit"])
    start, end = number(record["start_time"]), number(record["end_time"])
    told = {
        "user": record["user_name"],
        "name": record["name"],
        "account": record["account"],
        "partitions": tuple(filter(None, record["partition"].split(","))),
        "qos": record["qos"],
        "comment": record["comment"],
        "admin_comment": record["admin_comment"],
        "nice": nice(record["nice"]),
        "submit_time": float(number(record["submit_time"]) or 0),
        "eligible_time": float(number(record["eligible_time"]) or 0) or None,
        "start_time": float(start) if start else None,
        # Slurm sets an end in a year for jobs without a limit
        "end_time": float(end) if end and (limit is not None or not LIVE & {*record["job_state"]}) else None,
        "time_limit": None if limit is None else limit * 60,
        "batch": record["batch_flag"],
        "requeue": record["requeue"],
        "restarts": record["restart_cnt"],
        "reservation": record["resv_name"],
        "dependency": record["dependency"],
        "features": record["features"],
        "tasks": max(number(record["tasks"]) or 1, 1),
    }
    allocation = ((record.get("job_resources") or {}).get("nodes") or {}).get("allocation") or []
    if "RUNNING" in record["job_state"] and "COMPLETING" not in record["job_state"]:
        told["nodes"] = {node["name"]: (node["cpus"]["count"], node["memory"]["allocated"]) for node in allocation}
        told["gpus"] = sum(devices(text) for text in record["gres_detail"])
    return told


def devices(text: str) -> int:
    """The GPUs of `gpu:v100:2(IDX:0-1),shard:...`."""
    entries = [part for part in text.replace(")", "),").split("),") if part.startswith("gpu:")]
    return sum(int(entry.split("(")[0].rsplit(":", 1)[1]) for entry in entries)


def nice(value: int) -> int:
    """Some releases show a negative one unsigned."""
    return value - 2**32 if value >= 2**31 else value


def of_job(job: Job) -> dict[str, Any]:
    plain = (
        "user", "name", "account", "partitions", "qos", "comment", "admin_comment", "nice", "submit_time",
        "eligible_time", "start_time", "end_time", "time_limit", "batch", "requeue", "restarts", "reservation",
        "dependency",
    )  # fmt: skip
    return {key: getattr(job, key) for key in plain} | {
        "features": job.original_request.features,
        "tasks": job.original_request.tasks,
        "nodes": {share.node: (share.resources.cpus, share.resources.memory) for share in job.allocations},
        "gpus": sum(share.resources.gpus for share in job.allocations),
    }


if __name__ == "__main__":
    sys.exit(main())
