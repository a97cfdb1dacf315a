"""Jobs of the fake Slurm, as scontrol and squeue print them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["FakeJob", "excluded", "table"]

_DEFAULTS: Final = {
    "Dependency": "(null)",
    "Requeue": "1",
    "Restarts": "0",
    "BatchFlag": "1",
    "RunTime": "00:00:00",
    "TimeLimit": "01:00:00",
    "SubmitTime": "2026-11-21T01:23:08",
    "EligibleTime": "Unknown",
    "StartTime": "Unknown",
    "EndTime": "Unknown",
    "Partition": "gpu",
    "ReqNodeList": "(null)",
    "ExcNodeList": "(null)",
    "NodeList": "(null)",
    "NumNodes": "1-1",
    "NumCPUs": "6",
    "NumTasks": "1",
    "CPUs/Task": "6",
    "NtasksPerN:B:S:C": "0:0:*:*",
    "MinCPUsNode": "6",
    "MinMemoryNode": "1000M",
    "Features": "(null)",
    "OverSubscribe": "OK",
    "Reservation": "(null)",
    "Network": "(null)",
}
_ORDER: Final = (
    *("Dependency", "Requeue", "Restarts", "BatchFlag", "RunTime", "TimeLimit", "SubmitTime", "EligibleTime"),
    *("StartTime", "EndTime", "Partition", "AllocNode:Sid", "ReqNodeList", "ExcNodeList", "NodeList", "NumNodes"),
    *("NumCPUs", "NumTasks", "CPUs/Task", "ReqTRES", "AllocTRES", "TRES", "NtasksPerN:B:S:C", "JOB_GRES"),
    *("Nodes", "CPU_IDs", "Mem", "GRES", "MinCPUsNode", "MinMemoryCPU", "MinMemoryNode", "Features"),
    *("OverSubscribe", "Exclusive", "Reservation", "Network"),
)
_LIKE: Final = {
    "ReqNodes": "ReqNodeList",
    "ExcNodes": "ExcNodeList",
    "Feature": "Features",
    "RestartCnt": "Restarts",
    "MinCPUs": "MinCPUsNode",
} | {
    "TimeUsed": "RunTime",
    **{name: name for name in ("NodeList", "OverSubscribe", "Exclusive", "Partition", "Reservation", "Dependency")},
    **{name: name for name in ("NumCPUs", "NumTasks", "BatchFlag", "Requeue", "TimeLimit")},
    **{name: name for name in ("SubmitTime", "EligibleTime", "StartTime", "EndTime")},
}


@dataclass
class FakeJob:
    """A job; `fields` are scontrol's between Reason and Command, `asked` those behind it. All may be replaced.

    `options` are the columns of squeue that show single options of sbatch, where one was given.
    `array` is its number and tasks with a `_` between them, `throttle` how many tasks of it may run at once where its
    tasks do not say so (`%`); `arguments` are those of its script.
    """

    number: int
    user: str = "alice"
    name: str = "train"
    state: str = "PENDING"
    reason: str = "None"
    priority: int = 100
    nice: int = 0
    comment: str = ""
    admin_comment: str = ""
    array: str = ""
    throttle: int | None = None
    requeue: bool = True
    fields: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=lambda: {"TresPerNode": "gres/gpu:v100:2"})
    options: dict[str, str] = field(default_factory=dict)
    account: str = "vision"
    wckey: str = ""
    submitted_on: str = "login"
    arguments: str = ""

    def answers_to(self, names: Iterable[str]) -> bool:
        """Whether this is one of these jobs, or a task of one of these arrays."""
        leader = self.array.partition("_")[0]
        return bool({str(self.number), self.array, leader} & set(names))

    @property
    def values(self) -> dict[str, str]:
        """scontrol's fields, with what slurmctld counts."""
        values = _DEFAULTS | {"Requeue": str(int(self.requeue))} | self.fields
        if "MinMemoryCPU" in self.fields:
            del values["MinMemoryNode"]
        if not {"ReqTRES", "TRES"} & values.keys():
            nodes = int(values["NumNodes"].partition("-")[0])
            memory = re.fullmatch(r"(\d+)([MG]?)", values.get("MinMemoryNode", values.get("MinMemoryCPU", "0")))
            times = int(values["NumCPUs"]) if "MinMemoryCPU" in values else nodes
            total = f"mem={int(memory[1]) * times}{memory[2] or 'M'}," if memory else ""
            values["ReqTRES"] = f"cpu={values['NumCPUs']},{total}node={nodes}"
        return values

    def text(self) -> str:
        """The line of `scontrol -d -o show job`."""
        leader, _, tasks = self.array.partition("_")
        front = f"JobId={self.number} " + (f"ArrayJobId={leader} ArrayTaskId={tasks} " if leader else "")
        front += f"ArrayTaskThrottle={self.throttle} " if self.throttle else ""
        values = self.values | {"AllocNode:Sid": f"{self.submitted_on}:33"}
        unknown = values.keys() - set(_ORDER)
        assert not unknown, f"the fake Slurm has no place for {unknown}"
        ordered = {key: values[key] for key in _ORDER if key in values}
        comments = (f" AdminComment={self.admin_comment} " if self.admin_comment else "") + (
            f" Comment={self.comment} " if self.comment else ""
        )
        wckey = f" WCKey={self.wckey}" if self.wckey else ""
        return (
            f"{front}JobName={self.name} UserId={self.user}(2001) GroupId={self.user}(2001) MCS_label=N/A"
            f" Priority={self.priority} Nice={self.nice} Account={self.account} QOS=normal{wckey}"
            f" JobState={self.state} Reason={self.reason} {_joined(ordered)}"
            f" Command=/home/alice/job.sh {self.arguments} WorkDir=/home/alice{comments}"
            f" StdErr=/home/alice/err StdIn=/dev/null StdOut=/home/alice/out {_joined(self.asked)} "
        )

    def column(self, name: str) -> str:
        """What squeue prints for a column, however wide it is."""
        leader, _, tasks = self.array.partition("_")
        values = self.values
        fewest, _, most = values["NumNodes"].partition("-")
        asked = {re.sub(r"(?<=.)(?=[A-Z])", "-", key).lower(): value for key, value in self.asked.items()}
        known = {
            "JobID": str(self.number),
            "UserName": self.user,
            "UserID": "2001",
            "ArrayJobID": leader or str(self.number),
            "ArrayTaskID": tasks or "N/A",
            "HetJobID": "N/A",
            "HetJobOffset": "N/A",
            "State": self.state,
            "Reason": self.reason,
            "PriorityLong": str(self.priority),
            "Nice": str(self.nice),
            "Account": self.account,
            "QOS": "normal",
            "WCKey": self.wckey or "(null)",
            "AllocNodes": self.submitted_on,
            "NumNodes": fewest,
            "MaxNodes": most or "0",
            "NTPerNode": values["NtasksPerN:B:S:C"].partition(":")[0],
            "MinMemory": values.get("MinMemoryNode", values.get("MinMemoryCPU", "0")),
            "tres-alloc": values.get("AllocTRES") or values.get("TRES") or values["ReqTRES"],
            "admin_comment": self.admin_comment or "(null)",
            "Name": self.name,
            "Comment": self.comment or "(null)",
        } | {column: asked.get(column, "N/A") for column in _ASKED}
        known |= _OPTIONS | self.options
        if name in known:
            return known[name]
        value = values.get(_LIKE[name], "NO")
        return {"Unknown": "N/A"}.get(value, "" if name.endswith(("Nodes", "List")) and value == "(null)" else value)


_OPTIONS: Final = {
    **dict.fromkeys(("NTPerSocket", "NTPerCore", "CoreSpec"), "N/A"),
    **dict.fromkeys(("MinTmpDisk", "ReqSwitch", "SegmentSize", "Contiguous", "Reboot"), "0"),
    **dict.fromkeys(("Licenses", "BurstBuffer", "Prefer"), "(null)"),
    "SCT": "*:*:*",
    "MinTime": "0:00",
}
"""What squeue prints of options that were not given."""

_ASKED: Final = (
    *("tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task"),
    *("cpus-per-tres", "mem-per-tres"),
)


def _joined(values: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def table(jobs: Sequence[FakeJob], form: str, unknown: frozenset[str]) -> tuple[bytes, str]:
    """What `squeue -O` prints: every value cut to its column's bytes, at their right; and its complaints."""
    columns = [column.rsplit(":.", 1) for column in form.split(",")]
    complaints = "".join(
        f"squeue: error: Invalid job format specification: {name}\n" for name, _ in columns if name in unknown
    )
    shown = [(name, int(width)) for name, width in columns if name not in unknown]
    lines = (b"".join(_cell(job.column(name), width) for name, width in shown) + b"\n" for job in jobs)
    return b"".join(lines), complaints


def excluded(jobs: Sequence[FakeJob], form: str) -> bytes:
    """What `squeue -o %.12A%.128x` prints."""
    match = re.fullmatch(r"%\.(\d+)A%\.(\d+)x", form)
    assert match, f"the fake Slurm knows no format {form}"
    lines = (
        _cell(str(job.number), int(match[1])) + _cell(job.column("ExcNodes"), int(match[2])) + b"\n" for job in jobs
    )
    return b"".join(lines)


def _cell(value: str, width: int) -> bytes:
    return value.encode(errors="surrogateescape")[:width].rjust(width)
