"""Jobs of a made-up Slurm, printed as scontrol and squeue of three releases print them.

What owners wrote stands in the text unescaped, as in Slurm's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final

__all__ = ["GPUS", "MadeUpJob", "Release", "cells", "record"]

GPUS: Final = 8
"""GPUs of a node; it has 24 CPUs and 500 GiB, as the nodes of the mini cluster."""

_SHORT: Final = 1024
"""Bytes that slurmctld takes of most text; arguments and the submit line may have far more."""
_WORDED: Final = {
    "name": ("name", b"train"),
    "comment": ("comment", b"(null)"),
    "network": ("network", b"(null)"),
    "feature": ("features", b"(null)"),
    "wckey": ("wckey", b"(null)"),
    "account": ("account", b"vision"),
    "licenses": ("licenses", b"(null)"),
    "workdir": ("work_dir", b"/home/u"),
    "container": ("container", b""),
    "stderr": ("std_err", b""),
    "stdin": ("std_in", b"/dev/null"),
    "stdout": ("std_out", b""),
}
"""squeue's column, the field that its owner worded, and what is there without his words."""


class Release(StrEnum):
    """Whose form of record."""

    BOOKWORM = "22.05"
    TRIXIE = "24.11"
    SID = "26.05"


@dataclass(slots=True)
class MadeUpJob:
    """A job: what Slurm knows of it, and in `text` what its owner wrote. Times are unix seconds.

    It asks for `gpus` of one type on one node; one that runs has `indices` and `cores` of `node`.
    """

    number: int
    user: str
    uid: int
    gpus: int
    submitted: int
    priority: int = 100
    reason: str = "None"
    partition: str = "gpu"
    node: str = ""
    indices: tuple[int, ...] = ()
    tasks: str = ""
    started: int = 0
    text: Mapping[str, bytes] = field(default_factory=dict)
    record: bytes = b""
    """Its text in scontrol once that was asked for."""
    cells: dict[str, bytes] = field(default_factory=dict)
    """Its values in squeue likewise."""

    @property
    def state(self) -> str:
        return "RUNNING" if self.node else "PENDING"

    @property
    def cpus(self) -> int:
        return 3 * self.gpus

    @property
    def memory(self) -> int:
        """MiB."""
        return 1000 * self.gpus

    def forget(self) -> None:
        """It has changed: what was printed of it is not so any more."""
        self.record = b""
        self.cells = {}

    def words(self, name: str, default: bytes = b"") -> bytes:
        """What the owner wrote in a field, cut as slurmctld cuts it."""
        text = self.text.get(name, default)
        return text if name in ("arguments", "submit_line") else text[:_SHORT]


def record(job: MadeUpJob, release: Release) -> bytes:
    """The line of `scontrol -d -o show job`."""
    if not job.record:
        job.record = _front(job, release) + _behind(job, release) + b"\n"
    return job.record


def cells(job: MadeUpJob, release: Release) -> dict[str, bytes]:
    """What squeue shows, by the column's name in small letters."""
    if not job.cells:
        job.cells = {column: job.words(name, default) for column, (name, default) in _WORDED.items()}
        job.cells |= {column: str(value).encode() for column, value in _known(job, release).items()}
    return job.cells


def _known(job: MadeUpJob, release: Release) -> dict[str, object]:
    return {
        "jobid": job.number,
        "jobarrayid": f"{job.number}_[{job.tasks}]" if job.tasks else job.number,
        "arrayjobid": job.number,
        "allocnodes": "login", "ntpernode": "0", "exclusive": "NO",
        "arraytaskid": job.tasks or "N/A",
        "userid": job.uid,
        "username": job.user,
        "groupid": job.uid,
        "partition": job.partition,
        "qos": "normal",
        "state": job.state,
        "statecompact": "R" if job.node else "PD",
        "reason": job.reason,
        "reasonlist": job.node or f"({job.reason})",
        "prioritylong": job.priority,
        "nice": 0,
        "submittime": _time(job.submitted),
        "eligibletime": _time(job.submitted),
        "starttime": _time(job.started) if job.started else "N/A",
        "endtime": _time(_end(job)) if job.started else "N/A",
        "timelimit": "2-12:00:00",
        "timeused": "1:00:00" if job.node else "0:00",
        "nodelist": job.node,
        "nodes": 1, "numnodes": 1, "numcpus": job.cpus, "numtasks": 1, "cpus-per-task": job.cpus,
        "minmemory": f"{job.memory}M", "mincpus": job.cpus, "maxnodes": 0 if job.node else 1, "maxcpus": 0,
        "dependency": "(null)", "reservation": "(null)", "system_comment": "(null)", "requeue": 1, "restartcnt": 0,
        "reqnodes": "", "excnodes": "", "batchflag": 1, "hetjobid": "N/A", "hetjoboffset": "N/A",
        "admin_comment": "(null)",
        "tres-alloc": _tres(job), "tres-per-node": _per_node(job, release), "tres": _per_node(job, release),
        "tres-per-task": "N/A" if release is Release.BOOKWORM else f"cpu={job.cpus}",
        "tres-per-job": "N/A", "tres-per-socket": "N/A", "cpus-per-tres": "N/A", "mem-per-tres": "N/A",
        "oversubscribe": "NO" if release is Release.SID else "OK", "contiguous": 0, "threads": "*",
    }  # fmt: skip


def _front(job: MadeUpJob, release: Release) -> bytes:
    """Up to and with Network=."""
    own = job.words
    array = f"ArrayJobId={job.number} ArrayTaskId={job.tasks} " if job.tasks else ""
    wckey = b" WCKey=" + own("wckey") if "wckey" in job.text else b""
    asked = _tres(job)
    tres = f"TRES={asked}" if release is Release.BOOKWORM else f"ReqTRES={asked} AllocTRES={_had(job)}"
    submitted, host = _time(job.submitted), f" BatchHost={job.node}" if job.node else ""
    sharing = "NO Exclusive=NO" if release is Release.SID else "OK"
    return b"".join(
        (
            f"JobId={job.number} {array}JobName=".encode(),
            own("name", b"train"),
            b" SLUID=sCD1M7Y0HMZ900" if release is Release.SID else b"",
            f" UserId={job.user}({job.uid}) GroupId={job.user}({job.uid}) MCS_label=N/A Priority={job.priority}"
            " Nice=0 Account=".encode(),
            own("account", b"vision"),
            b" QOS=normal",
            wckey,
            f" JobState={job.state} Reason={job.reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0"
            f" ExitCode=0:0 DerivedExitCode=0:0 RunTime={'01:00:00' if job.node else '00:00:00'}"
            f" TimeLimit=2-12:00:00 TimeMin=N/A SubmitTime={submitted} EligibleTime={submitted}"
            f" AccrueTime={submitted} StartTime={_time(job.started)} EndTime={_time(_end(job))}"
            f" Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval={submitted} Scheduler=Main"
            f" Partition={job.partition} AllocNode:Sid=login:122 ReqNodeList=(null) ExcNodeList=(null)"
            f" NodeList={job.node}{host} NumNodes=1{'' if job.node else '-1'}"
            f" NumCPUs={job.cpus} NumTasks=1 CPUs/Task={job.cpus} ReqB:S:C:T=0:0:*:* {tres} Socks/Node=*"
            f" NtasksPerN:B:S:C=0:0:*:* CoreSpec=* {_layout(job, release)}MinCPUsNode={job.cpus}"
            f" MinMemoryNode={job.memory}M MinTmpDiskNode=0 Features=".encode(),
            own("features", b"(null)"),
            f" DelayBoot=00:00:00 OverSubscribe={sharing} Contiguous=0 Licenses=".encode(),
            own("licenses", b"(null)"),
            b" LicensesAlloc=(null)" if release is Release.SID else b"",
            b" Network=",
            own("network", b"(null)"),
        )
    )


def _layout(job: MadeUpJob, release: Release) -> str:
    if not job.node:
        return ""
    gap = " " if release is Release.SID else "   "
    return (
        f"JOB_GRES=gpu:v100:{job.gpus}{gap}Nodes={job.node} CPU_IDs={_cores(job)} Mem={job.memory}"
        f" GRES=gpu:v100:{job.gpus}(IDX:{_indices(job)}) "
    )


def _behind(job: MadeUpJob, release: Release) -> bytes:
    """From Command= on. 22.05 shows the arguments there, 26.05 the whole command in SubmitLine=."""
    own = job.words
    parts = [b" Command=/home/u/job.sh"]
    if release is Release.BOOKWORM and "arguments" in job.text:
        parts += [b" ", own("arguments")]
    if release is Release.SID:
        parts += [b" SubmitLine=sbatch job.sh ", own("submit_line"), own("arguments")]
    parts += [b" WorkDir=", own("work_dir", b"/home/u")]
    gap = b"" if release is Release.SID else b" "
    if "comment" in job.text:
        parts += [b" Comment=", own("comment"), gap]
    if "extra" in job.text and release is not Release.BOOKWORM:
        parts += [b" Extra=", own("extra"), gap]
    parts += [b" StdErr=", own("std_err"), b" StdIn=", own("std_in", b"/dev/null"), b" StdOut=", own("std_out")]
    parts += [b" Power=" if release is Release.BOOKWORM else b"", b" TresPerNode=", _per_node(job, release).encode()]
    if release is not Release.BOOKWORM:
        parts.append(b" TresPerTask=cpu=%d" % job.cpus)
    if "mail_user" in job.text:
        parts += [b" MailUser=", own("mail_user"), b" MailType=END"]
    if "container" in job.text:
        parts += [b" Container=", own("container"), b" ContainerID=(null)"]
    parts.append(gap)
    return b"".join(parts)


def _per_node(job: MadeUpJob, release: Release) -> str:
    return f"{'gres:gpu' if release is Release.BOOKWORM else 'gres/gpu'}:v100:{job.gpus}"


@lru_cache(maxsize=4096)
def _time(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S") if moment else "Unknown"


def _end(job: MadeUpJob) -> int:
    return job.started + 216_000 if job.started else 0


def _tres(job: MadeUpJob) -> str:
    return f"cpu={job.cpus},mem={job.memory}M,node=1,billing={job.cpus},gres/gpu={job.gpus}"


def _had(job: MadeUpJob) -> str:
    return _tres(job) if job.node else "(null)"


def _indices(job: MadeUpJob) -> str:
    return ",".join(map(str, job.indices))


def _numbers(job: MadeUpJob) -> list[int]:
    """CPU numbers: three beside each GPU."""
    return [3 * index + core for index in job.indices for core in range(3)]


def _cores(job: MadeUpJob) -> str:
    return ",".join(map(str, _numbers(job)))
