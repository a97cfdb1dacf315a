"""A program that reads a cluster once with pyslurm and prints it as JSON.

    python -P pyslurm_program.py SERIES MEBIBYTES

A fault of the C library (a crash, a hang, a leak, or the exit when pyslurm is imported without a configuration) ends
only this process. A new process for each poll leaks no memory and always reads the current slurm.conf; it costs the
start of an interpreter. `SERIES` is slurmctld's (`25.11`), and `MEBIBYTES` limits the address space of this process.
It needs only the standard library and pyslurm, which is GPL-2.0-only and optional: no other module imports pyslurm.

Each kind of record is `{"fields": [...], "rows": [[...], ...]}`. The last value of each row holds the fields that could
not be read, as `{field: error}`. What pyslurm prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import pwd
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

NOT_INSTALLED: Final = 3
"""Exit code if pyslurm is not installed."""
WRONG_SERIES: Final = 4
"""Exit code if pyslurm belongs to another series of Slurm."""
NO_ANSWER: Final = 5
"""Exit code if slurmctld does not answer."""

_MEBIBYTE: Final = 2**20

_JOB_FIELDS: Final = (
    "id", "user_id", "state", "state_reason", "priority", "nice", "account", "qos", "name", "comment", "admin_comment",
    "array_id", "array_task_id", "array_tasks_waiting", "array_tasks_parallel", "heterogeneous_id",
    "heterogeneous_offset", "num_nodes", "max_nodes", "cpus", "cpus_per_task", "ntasks", "ntasks_per_node",
    "sockets_per_node", "memory_per_cpu", "memory_per_node", "required_nodes", "excluded_nodes", "constraints",
    "resource_sharing", "partition", "reservation", "dependencies", "is_batch_job", "is_requeueable", "requeue_count",
    "submit_time", "eligible_time", "start_time", "end_time", "run_time", "time_limit", "requested_tres",
    "allocated_tres", "layout", "gres_per_node",
)  # fmt: skip
_NODE_FIELDS: Final = (
    "name", "state", "configured_gres", "allocated_tres", "effective_cpus", "total_cpus",
    "sockets", "cores_per_socket", "allocated_cpus", "real_memory", "memory_reserved_for_system", "allocated_memory",
    "active_features", "partitions", "reason", "weight",
)  # fmt: skip
_RESERVATION_FIELDS: Final = ("name", "nodes", "start_time", "end_time", "users", "accounts", "flags")


def main(arguments: Sequence[str]) -> int:
    """Reads the cluster, prints it and returns the exit code."""
    series, mebibytes = arguments
    limit = int(mebibytes) * _MEBIBYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        pyslurm: Any = importlib.import_module("pyslurm")
    except ModuleNotFoundError as error:
        if error.name != "pyslurm":
            raise
        return _fail(NOT_INSTALLED, error)
    release = str(pyslurm.__version__)
    if _series(release) != _series(series):
        return _fail(WRONG_SERIES, f"pyslurm {release} does not fit Slurm {series}: both must be of one X.Y series")
    try:
        cluster = {
            "release": release,
            "jobs": _table(pyslurm.Jobs.load().values(), _JOB_FIELDS, _SPECIAL_READERS),
            "nodes": _table(pyslurm.Nodes.load().values(), _NODE_FIELDS, {}),
            "reservations": _table(pyslurm.Reservations.load().values(), _RESERVATION_FIELDS, {"flags": _flags}),
        }
    except pyslurm.PyslurmError as error:
        return _fail(NO_ANSWER, error)
    cluster["users"] = {str(user): _user_name(user) for user in _column(cluster["jobs"], "user_id")}
    cluster["mebibytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with os.fdopen(answer, "w", encoding="ascii") as out:
        json.dump(cluster, out, separators=(",", ":"))
    return 0


def _series(release: str) -> list[int]:
    """The X.Y series as numbers: pyslurm 25.5.0 belongs to Slurm 25.05."""
    return [int(part) for part in release.split(".")[:2] if part.isdecimal()]


def _table(records: Iterable[Any], fields: Sequence[str], readers: dict[str, Callable[[Any, str], Any]]) -> Any:
    """The fields and rows of these records. An error with one value, which a user may have written, goes to its row."""
    value_readers = [(field, readers.get(field, getattr)) for field in fields]
    rows = []
    for record in records:
        unread: dict[str, str] = {}
        row = []
        for field, read in value_readers:
            try:
                row.append(read(record, field))
            except Exception as error:
                unread[field] = type(error).__name__
                row.append(None)
        row.append(unread)
        rows.append(row)
    return {"fields": list(fields), "rows": rows}


def _layout(job: Any, _field: str) -> Any:
    return job.get_resource_layout_per_node()


def _tres(job: Any, field: str) -> dict[str, int]:
    """Amounts by Slurm's names: `cpu`, `mem` in MiB, `node`, `gres/gpu:v100`."""
    tres = getattr(job, field)
    if tres is None:
        return {}
    plain = {name: getattr(tres, name, None) for name in ("cpu", "mem", "node", "billing")}
    return {name: int(entry.count) for name, entry in plain.items() if entry is not None} | {
        f"gres/{name}": int(entry.count) for name, entry in tres.gres.items()
    }


def _flags(reservation: Any, field: str) -> list[str]:
    """pyslurm's names of the flags that are set. Raises ValueError if it does not know one of them."""
    flags = getattr(reservation, field)
    return [flag.name for flag in type(flags) if flag in flags]


def _gres_per_node(job: Any, field: str) -> Any:
    """The job's GRES per node; None in releases of pyslurm without that attribute."""
    return getattr(job, field, None)


_SPECIAL_READERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "layout": _layout,
    "requested_tres": _tres,
    "allocated_tres": _tres,
    "gres_per_node": _gres_per_node,
}


def _column(table: Any, field: str) -> set[int]:
    index = table["fields"].index(field)
    return {row[index] for row in table["rows"] if row[index] is not None}


@cache
def _user_name(user: int) -> str:
    """The user's name, or the uid if it has no name, as Slurm's commands print it."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _fail(code: int, error: object) -> int:
    sys.stderr.write(f"{' '.join(str(error).split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
