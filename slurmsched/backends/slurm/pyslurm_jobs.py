"""Jobs read with pyslurm, where one is installed that fits this slurmctld.

It brings names and comments as values, so that nobody's words can pass for fields. What pyslurm 23.2 to 25.11 cannot
tell comes from the table of jobs: GPUs asked for per job, task or socket (`Job.tres_per_*` are None whatever was
asked), CPUs and memory per GPU. Nodes are read by commands, as pyslurm has no `GresUsed`.

Changes go by commands too. In these releases pyslurm takes an empty string or a nice of 0 for no change, ignores the
number of nodes, cannot name an array task, and ends the interpreter on `hold(mode="user")`; one scontrol fed with many
lines is as fast. pyslurm is GPL-2.0-only and optional: nothing else imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, cast

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import PyslurmError
from slurmsched.backends.slurm.hostlist import numbers
from slurmsched.backends.slurm.records import JobRecord, Placement
from slurmsched.backends.slurm.table import Row, rows
from slurmsched.backends.slurm.text_jobs import TextJobs, fields_of_row, set_aside
from slurmsched.model import SetAside

__all__ = ["Pyslurm", "PyslurmJobs", "load"]

_USUAL_CONFIGURATION: Final = "/etc/slurm/slurm.conf"
_ASKED: Final = ("TresPerJob", "TresPerNode", "TresPerSocket", "TresPerTask", "CpusPerTres", "MemPerTres", "TRES")
"""What it cannot tell."""

_UNSIGNED: Final = 2**32


class Jobs(Protocol):
    """`pyslurm.Jobs`; what `load` gives has `values()`."""

    def load(self) -> Mapping[int, Any]: ...


class Pyslurm(Protocol):
    """What is used of the module. It has no types of its own, hence `Any` for a job."""

    __version__: str
    Jobs: Jobs
    PyslurmError: type[Exception]


def load(
    release: Callable[[], str],
    slurm_conf: str,
    find: Callable[[str], object] = importlib.util.find_spec,
    get: Callable[[str], object] = importlib.import_module,
    environment: MutableMapping[str, str] = os.environ,
) -> Pyslurm:
    """The module, if it is installed and was built for slurmctld's `release` (`25.11.7`), asked for only then.

    Its import reads slurm.conf, and waits a minute for one that is missing: so it is looked for first. Raises
    PyslurmError, and what asking for the release raises.
    """
    if find("pyslurm") is None:
        raise PyslurmError("pyslurm is not installed: set backend = 'commands', or install pyslurm for this Slurm")
    configuration = slurm_conf or environment.get("SLURM_CONF", "") or _USUAL_CONFIGURATION
    if not Path(configuration).is_file():
        raise PyslurmError(f"pyslurm needs slurm.conf and there is no {configuration}: set slurm_conf in [cluster]")
    environment["SLURM_CONF"] = configuration
    try:
        module = cast("Pyslurm", get("pyslurm"))
    except (ImportError, OSError, RuntimeError) as error:
        raise PyslurmError(f"pyslurm cannot be imported: {error}") from error
    served = release()
    if _series(module.__version__) != _series(served):
        raise PyslurmError(f"pyslurm {module.__version__} does not fit Slurm {served}: both must be of one X.Y series")
    return module


def _series(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())


class PyslurmJobs:
    """Jobs from `pyslurm.Jobs.load()`, one request, and one of squeue's for what it leaves out.

    pyslurm 24.11 shows nothing of what running jobs have. Once that is seen jobs are read as text for good.
    """

    def __init__(self, module: Pyslurm) -> None:
        self._module = module
        self._text: TextJobs | None = None

    @property
    def name(self) -> str:
        """See `JobSource`."""
        return self._text.name if self._text else "pyslurm"

    def records(self, commands: Commands) -> tuple[list[JobRecord], list[SetAside]]:
        """See `JobSource`."""
        if self._text:
            return self._text.records(commands)
        commands.calls.reads += 1
        try:
            jobs = list(self._module.Jobs.load().values())
        except self._module.PyslurmError as error:
            raise UnreachableError(f"slurmctld does not answer pyslurm: see 'scontrol ping' ({error})") from error
        if any(job.state == "RUNNING" and not job.get_resource_layout_per_node() for job in jobs):
            self._text = TextJobs()
            return self._text.records(commands)
        return _records(jobs, rows(commands))


def _records(jobs: Iterable[Any], table: Mapping[str, Row]) -> tuple[list[JobRecord], list[SetAside]]:
    records: list[JobRecord] = []
    left: list[SetAside] = []
    for job in jobs:
        row = table.get(str(job.id))
        if row is None:
            continue  # it came or went between the two queries
        try:
            asked = fields_of_row(row)
            records.append(_record(job, {key: asked[key] for key in _ASKED}))
        except Exception as error:
            left.append(set_aside(row, error))
    return records, left


def _record(job: Any, asked: Mapping[str, str]) -> JobRecord:
    het = _number(getattr(job, "heterogeneous_id", None))
    waiting = job.array_tasks_waiting or ""
    task = "" if job.array_task_id is None else str(job.array_task_id)
    nice = int(job.nice or 0)
    return JobRecord(
        number=str(job.id),
        user=job.user_name,
        state=job.state,
        reason="_".join((job.state_reason or "").split()),
        priority=int(job.priority or 0),
        nice=nice - _UNSIGNED if nice >= _UNSIGNED // 2 else nice,  # up to 24.11 negative ones come unsigned
        account=job.account or "",
        qos=job.qos or "",
        name=job.name or "",
        fields={**_fields(job), **asked},
        placements=_placements(job),
        array=str(job.array_id) if job.array_id else "",
        tasks=waiting or task,
        throttle=job.array_tasks_parallel or None,
        het=str(het) if het else "",
        offset=str(_number(getattr(job, "heterogeneous_offset", None))) if het else "",
        comment=job.comment or "",
        admin_comment=job.admin_comment or "",
    )


def _fields(job: Any) -> dict[str, str]:
    """In scontrol's words, so that one reader makes jobs of both."""
    most = f"-{job.max_nodes}" if job.max_nodes and job.state == "PENDING" else ""
    limit = job.time_limit
    memory = (
        {"MinMemoryCPU": f"{job.memory_per_cpu}M"}
        if job.memory_per_cpu
        else {"MinMemoryNode": f"{job.memory_per_node or 0}M"}
    )
    return memory | {
        "NumNodes": f"{job.num_nodes or 1}{most}",
        "NumCPUs": str(job.cpus or 1),
        "NumTasks": str(job.ntasks or 1),
        "NtasksPerN:B:S:C": str(job.ntasks_per_node or 0),
        "ReqNodeList": str(job.required_nodes or ""),
        "ExcNodeList": str(job.excluded_nodes or ""),
        "Features": ",".join(job.constraints or ()),
        "OverSubscribe": str(job.resource_sharing or ""),
        "Partition": str(job.partition or ""),
        "Reservation": str(job.reservation or ""),
        "Dependency": _dependency(job.dependencies),
        "BatchFlag": "1" if job.is_batch_job else "0",
        "Requeue": "1" if job.is_requeueable else "0",
        "Restarts": str(job.requeue_count or 0),
        "SubmitTime": _moment(job.submit_time),
        "EligibleTime": _moment(job.eligible_time),
        "StartTime": _moment(job.start_time),
        "EndTime": _moment(job.end_time),
        "RunTime": f"0:{int(job.run_time or 0) // 60}:{int(job.run_time or 0) % 60}",
        "TimeLimit": f"{limit}:00" if isinstance(limit, int) else "UNLIMITED",
    }


def _placements(job: Any) -> tuple[Placement, ...]:
    """What it has on each node. pyslurm counts cores: where a core has several CPUs their number is made up for."""
    layout: Mapping[str, Mapping[str, Any]] = job.get_resource_layout_per_node()
    cores = {node: len(numbers(str(there["cpu_ids"] or ""))) for node, there in layout.items()}
    total, cpus = sum(cores.values()), int(job.cpus or 0)
    each = cpus // total if total and cpus % total == 0 else 1
    return tuple(
        Placement(node, f"0-{cores[node] * each - 1}" if cores[node] else "", f"{there['memory']}M", _gres(there))
        for node, there in layout.items()
    )


def _gres(there: Mapping[str, Any]) -> str:
    entries = []
    for name, detail in (there.get("gres") or {}).items():
        indices = detail.get("indexes")
        named = f"(IDX:{indices})" if name.startswith("gpu") and indices else ""
        entries.append(f"{name}:{detail['count']}{named}")
    return ",".join(entries)


def _dependency(found: Mapping[str, Any] | None) -> str:
    listed = ((kind, jobs) for kind, jobs in (found or {}).items() if isinstance(jobs, (list, tuple)) and jobs)
    return ",".join(f"{kind}:{':'.join(str(job) for job in jobs)}" for kind, jobs in listed)


def _moment(at: int | None) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") if at else "Unknown"


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
