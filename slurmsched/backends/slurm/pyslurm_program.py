"""Reads a cluster with pyslurm, once, in a process of its own, and prints it as JSON.

    python -P pyslurm_program.py SERIES MEBIBYTES

A fault of the C library (a crash, a hang, a leak, or the exit that importing pyslurm ends in where no configuration is
found) ends this process and nothing else. A fresh one for each poll keeps nothing in memory and always has the present
slurm.conf; it costs the start of an interpreter. `SERIES` is slurmctld's (`25.11`), and `MEBIBYTES` the address space
that this process may have. It needs the standard library and pyslurm alone, which is GPL-2.0-only and optional:
nothing else imports it.

Each kind of record is `{"fields": [...], "rows": [[...], ...]}`, and behind the fields of each row stands what could
not be read, as `{field: error}`. pyslurm prints some of what it does not know: its words go to standard error.
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
"""Exit code where there is no pyslurm."""
WRONG_SERIES: Final = 4
"""Exit code where pyslurm belongs to another series of Slurm."""
NO_ANSWER: Final = 5
"""Exit code where slurmctld does not answer."""

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
    "name", "state", "configured_gres", "allocated_tres", "effective_cpus", "total_cpus", "threads_per_core",
    "allocated_cpus", "real_memory", "memory_reserved_for_system", "allocated_memory", "active_features", "partitions",
    "reason", "weight",
)  # fmt: skip
_PARTITION_FIELDS: Final = ("name", "nodes", "state", "max_time", "is_default", "priority_tier")
_RESERVATION_FIELDS: Final = ("name", "nodes", "start_time", "end_time", "users", "accounts")


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    series, mebibytes = arguments
    most = int(mebibytes) * _MEBIBYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
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
        found = {
            "release": release,
            "jobs": _table(pyslurm.Jobs.load().values(), _JOB_FIELDS, _SPECIAL_READERS),
            "nodes": _table(pyslurm.Nodes.load().values(), _NODE_FIELDS, {}),
            "partitions": _table(pyslurm.Partitions.load().values(), _PARTITION_FIELDS, {}),
            "reservations": _table(pyslurm.Reservations.load().values(), _RESERVATION_FIELDS, {}),
        }
    except pyslurm.PyslurmError as error:
        return _fail(NO_ANSWER, error)
    found["users"] = {str(user): _user_name(user) for user in _column(found["jobs"], "user_id")}
    found["mebibytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with os.fdopen(answer, "w", encoding="ascii") as out:
        json.dump(found, out, separators=(",", ":"))
    return 0


def _series(release: str) -> list[int]:
    """As numbers: pyslurm's 25.5.0 belongs to Slurm 25.05."""
    return [int(part) for part in release.split(".")[:2] if part.isdecimal()]


def _table(records: Iterable[Any], fields: Sequence[str], reads: dict[str, Callable[[Any, str], Any]]) -> Any:
    """What these records are. Whatever goes wrong with one value is told beside it: an owner may have written it."""
    read = [(field, reads.get(field, getattr)) for field in fields]
    rows = []
    for record in records:
        unread: dict[str, str] = {}
        row = []
        for field, value_of in read:
            try:
                row.append(value_of(record, field))
            except Exception as error:
                unread[field] = type(error).__name__
                row.append(None)
        row.append(unread)
        rows.append(row)
    return {"fields": list(fields), "rows": rows}


def _layout(job: Any, _field: str) -> Any:
    return job.get_resource_layout_per_node()


def _tres(job: Any, field: str) -> dict[str, int]:
    """Amounts by name as Slurm writes them: `cpu`, `mem` in MiB, `node`, `gres/gpu:v100`."""
    found = getattr(job, field)
    if found is None:
        return {}
    plain = {name: getattr(found, name, None) for name in ("cpu", "mem", "node", "billing")}
    return {name: int(one.count) for name, one in plain.items() if one is not None} | {
        f"gres/{name}": int(one.count) for name, one in found.gres.items()
    }


def _gres_per_node(job: Any, field: str) -> Any:
    """None from the release on in which pyslurm does not have it."""
    return getattr(job, field, None)


_SPECIAL_READERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "layout": _layout,
    "requested_tres": _tres,
    "allocated_tres": _tres,
    "gres_per_node": _gres_per_node,
}


def _column(table: Any, field: str) -> set[int]:
    place = table["fields"].index(field)
    return {row[place] for row in table["rows"] if row[place] is not None}


@cache
def _user_name(user: int) -> str:
    """The user's name, or his number where nobody knows it, as Slurm's commands print it."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _fail(code: int, why: object) -> int:
    sys.stderr.write(f"{' '.join(str(why).split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
