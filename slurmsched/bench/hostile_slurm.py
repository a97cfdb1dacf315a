"""A Slurm made up at the boundary of processes: it prints jobs as scontrol and squeue of three releases do.

What owners wrote stands in the text unescaped, as in Slurm's own. A command that it does not know is an AssertionError.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from slurmsched.backends.slurm.commands import Answer

__all__ = ["GPUS", "MadeUpJob", "MadeUpSlurm", "Release"]

GPUS: Final = 8
"""GPUs of a node; it has 24 CPUs and 500 GiB, as the nodes of the mini cluster."""

_CPUS, _MEMORY = 24, 512_000
_SHORT: Final = 1024
"""Bytes that slurmctld takes of most text; arguments and the submit line may have far more."""

_STATES: Final = {"PENDING": "PD", "RUNNING": "R"}


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

    def words(self, name: str, default: bytes = b"") -> bytes:
        """What the owner wrote in a field, cut as slurmctld cuts it."""
        text = self.text.get(name, default)
        return text if name in ("arguments", "submit_line") else text[:_SHORT]


class MadeUpSlurm:
    """Stands for `run_process`; `spent` are the CPU seconds of its own work, which are not the reader's.

    It holds and releases jobs, and knows no other change.
    """

    def __init__(self, release: Release, nodes: Sequence[str], jobs: Sequence[MadeUpJob]) -> None:
        self.release = release
        self.nodes = tuple(nodes)
        self.jobs = list(jobs)
        self.spent = 0.0

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        del timeout, env
        began = time.thread_time()
        try:
            return self._answer(argv, given)
        finally:
            self.spent += time.thread_time() - began

    def _answer(self, argv: Sequence[str], given: str) -> Answer:
        match [*argv]:
            case ["scontrol"]:
                return self._changed(given.splitlines())
            case ["scontrol", ("hold" | "release") as verb, number]:
                return self._changed([f"{verb} {number}"])
            case ["scontrol", *flags, "show", "job"]:
                return self._shown(self.jobs, "-v" in flags)
            case ["scontrol", *flags, "show", "job", number]:
                return self._shown(self._found(number), "-v" in flags)
        return _said(self._listed(argv))

    def _listed(self, argv: Sequence[str]) -> bytes:
        match [*argv]:
            case ["squeue", *words]:
                return self._queue(words)
            case ["sacctmgr", "-nP", "show", "user", name, "format=User,AdminLevel"]:
                return f"{name.removeprefix('name=')}|Operator\n".encode()
            case ["scontrol", *_, "show", what]:
                return self._cluster(what)
        raise AssertionError(f"the made-up Slurm knows no command {' '.join(argv)}")

    def _cluster(self, what: str) -> bytes:
        listed = ",".join(self.nodes)
        partition = "PartitionName={} Default=YES MaxTime=UNLIMITED Nodes={} PriorityTier=1 State=UP\n"
        configuration = (
            f"ClusterName             = made-up\nSlurmUser               = slurm(64030)\n"
            f"SLURM_VERSION           = {self.release}.8\n"
        )
        match what:
            case "config":
                return configuration.encode()
            case "partition":
                return "".join(partition.format(name, listed) for name in ("gpu", "debug")).encode()
            case "reservation":
                return b"No reservations in the system\n"
            case "node":
                return b"".join(map(self._node, self.nodes))
        raise AssertionError(f"the made-up Slurm knows no command scontrol show {what}")

    def _found(self, number: str) -> list[MadeUpJob]:
        return [job for job in self.jobs if str(job.number) == number]

    def _changed(self, lines: Sequence[str]) -> Answer:
        for line in lines:
            verb, _, number = line.partition(" ")
            if verb not in ("hold", "release"):
                raise AssertionError(f"the made-up Slurm knows no change {line}")
            for job in self._found(number):
                job.priority, job.reason = (0, "JobHeldAdmin") if verb == "hold" else (100, "None")
                job.record = b""
        return Answer(0, "", "")

    def _shown(self, jobs: Sequence[MadeUpJob], verbose: bool) -> Answer:
        if not jobs:
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        head = b"last_update_time=2026-11-21T01:26:49, records=%d\n" % len(jobs) if verbose else b""
        return _said(head + b"".join(map(self._text, jobs)))

    def _queue(self, words: Sequence[str]) -> bytes:
        chosen = self.jobs
        if "-j" in words:
            numbers = set(words[words.index("-j") + 1].split(","))
            chosen = [job for job in self.jobs if str(job.number) in numbers]
        if "--json" in words:
            return json.dumps({"jobs": [self._values(job) for job in chosen], "errors": []}).encode()
        if "-o" in words and words[words.index("-o") + 1] == "%A":
            return b"".join(b"%d\n" % job.number for job in chosen)
        if "-O" in words:
            columns = [_column(column) for column in words[words.index("-O") + 1].split(",")]
            return b"".join(self._row(job, columns) for job in chosen)
        raise AssertionError(f"the made-up Slurm knows no command squeue {' '.join(words)}")

    def _node(self, name: str) -> bytes:
        own = [job for job in self.jobs if job.node == name]
        taken = sorted(index for job in own for index in job.indices)
        used = f"gpu:v100:{len(taken)}(IDX:{','.join(map(str, taken)) or 'N/A'})"
        state = "IDLE" if not taken else "ALLOCATED" if len(taken) == GPUS else "MIXED"
        return (
            f"NodeName={name} Arch=x86_64 CoresPerSocket=12  CPUAlloc={sum(job.cpus for job in own)} CPUEfctv={_CPUS}"
            f" CPUTot={_CPUS} CPULoad=1.70 AvailableFeatures=v100 ActiveFeatures=v100 Gres=gpu:v100:{GPUS}"
            f" GresDrain=N/A GresUsed={used} NodeAddr={name} NodeHostName={name} RealMemory={_MEMORY}"
            f" AllocMem={sum(job.memory for job in own)} Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0"
            f" Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,debug \n"
        ).encode()

    def _text(self, job: MadeUpJob) -> bytes:
        """The record of `scontrol -d -o show job`."""
        if not job.record:
            job.record = self._front(job) + self._behind(job) + b"\n"
        return job.record

    def _front(self, job: MadeUpJob) -> bytes:
        """Up to and with Network=."""
        release, own = self.release, job.words
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
                f" NtasksPerN:B:S:C=0:0:*:* CoreSpec=* {self._layout(job)}MinCPUsNode={job.cpus}"
                f" MinMemoryNode={job.memory}M MinTmpDiskNode=0 Features=".encode(),
                own("features", b"(null)"),
                f" DelayBoot=00:00:00 OverSubscribe={sharing} Contiguous=0 Licenses=".encode(),
                own("licenses", b"(null)"),
                b" LicensesAlloc=(null)" if release is Release.SID else b"",
                b" Network=",
                own("network", b"(null)"),
            )
        )

    def _layout(self, job: MadeUpJob) -> str:
        if not job.node:
            return ""
        gap = " " if self.release is Release.SID else "   "
        return (
            f"JOB_GRES=gpu:v100:{job.gpus}{gap}Nodes={job.node} CPU_IDs={_cores(job)} Mem={job.memory}"
            f" GRES=gpu:v100:{job.gpus}(IDX:{_indices(job)}) "
        )

    def _behind(self, job: MadeUpJob) -> bytes:
        """From Command= on. 22.05 shows the arguments there, 26.05 the whole command in SubmitLine=."""
        release, own = self.release, job.words
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
        parts += [b" Power=" if release is Release.BOOKWORM else b"", b" TresPerNode=", self._per_node(job).encode()]
        if release is not Release.BOOKWORM:
            parts.append(b" TresPerTask=cpu=%d" % job.cpus)
        if "mail_user" in job.text:
            parts += [b" MailUser=", own("mail_user"), b" MailType=END"]
        if "container" in job.text:
            parts += [b" Container=", own("container"), b" ContainerID=(null)"]
        parts.append(gap)
        return b"".join(parts)

    def _per_node(self, job: MadeUpJob) -> str:
        return f"{'gres:gpu' if self.release is Release.BOOKWORM else 'gres/gpu'}:v100:{job.gpus}"

    def _row(self, job: MadeUpJob, columns: Sequence[tuple[str, int, bytes]]) -> bytes:
        """A line of `squeue -O`: each column padded and cut to its bytes, or with what stands behind it."""
        cells = []
        for name, width, mark in columns:
            value = self._cell(job, name)
            cells.append(value[:width].ljust(width) if width else value)
            cells.append(mark)
        return b"".join(cells) + b"\n"

    def _cell(self, job: MadeUpJob, name: str) -> bytes:
        own = {
            "name": "name", "comment": "comment", "network": "network", "features": "features", "feature": "features",
            "wckey": "wckey", "account": "account", "licenses": "licenses", "workdir": "work_dir",
            "container": "container", "stderr": "std_err", "stdin": "std_in", "stdout": "std_out",
        }.get(name)  # fmt: skip
        if own:
            default = {"name": b"train", "account": b"vision"}.get(own, b"(null)")
            return job.words(own, default)
        known: dict[str, object] = {
            "jobid": job.number,
            "jobarrayid": f"{job.number}_[{job.tasks}]" if job.tasks else job.number,
            "arrayjobid": job.number if job.tasks else "N/A",
            "arraytaskid": job.tasks or "N/A",
            "userid": job.uid,
            "username": job.user,
            "groupid": job.uid,
            "partition": job.partition,
            "qos": "normal",
            "state": job.state,
            "statecompact": _STATES[job.state],
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
            "minmemory": f"{job.memory}M", "mincpus": job.cpus, "maxnodes": 0, "maxcpus": 0,
            "dependency": "(null)", "reservation": "(null)", "requeue": 1, "restartcnt": 0,
            "reqnodes": "", "excnodes": "", "exc_nodes": "", "batchflag": 1, "hetjobid": "N/A", "hetjoboffset": "N/A",
            "admin_comment": "", "system_comment": "",
            "tres-alloc": _tres(job), "tres-per-node": self._per_node(job), "tres": self._per_node(job),
            "tres-per-task": "N/A" if self.release is Release.BOOKWORM else f"cpu={job.cpus}",
            "tres-per-job": "N/A", "tres-per-socket": "N/A", "cpus-per-tres": "N/A", "mem-per-tres": "N/A",
            "oversubscribe": "OK", "overSubscribe": "OK", "contiguous": 0, "threads": "*",
        }  # fmt: skip
        if name not in known:
            raise AssertionError(f"the made-up squeue knows no column {name}")
        return str(known[name]).encode()

    def _values(self, job: MadeUpJob) -> dict[str, Any]:
        """The job in `squeue --json`; 22.05 has plain numbers and words where later releases have tables and lists."""
        old, own = self.release is Release.BOOKWORM, job.words

        def number(value: int | None) -> object:
            if old:
                return value or 0
            return {"set": value is not None, "infinite": False, "number": value or 0}

        def listed(value: str) -> object:
            return value if old else [value]

        def text(name: str, default: bytes = b"") -> str:
            return own(name, default).decode(errors="replace")

        return {
            "account": text("account", b"vision"),
            "accrue_time": number(job.submitted),
            "admin_comment": "",
            "array_job_id": number(job.number if job.tasks else 0),
            "array_task_id": None if old and job.tasks else number(0 if old else None),
            "array_max_tasks": number(0),
            "array_task_string": job.tasks,
            "batch_flag": True,
            "batch_host": job.node,
            "cluster": "made-up",
            "command": "/home/u/job.sh" + (f" {text('arguments')}" if old else ""),
            "comment": text("comment"),
            "container": text("container"),
            "contiguous": False,
            "cpus": number(job.cpus),
            "cpus_per_task": number(job.cpus),
            "cpus_per_tres": "",
            "current_working_directory": text("work_dir", b"/home/u"),
            "deadline": number(0),
            "delay_boot": number(0),
            "dependency": "",
            "eligible_time": number(job.submitted),
            "end_time": number(_end(job)),
            "excluded_nodes": "",
            "extra": text("extra"),
            "features": text("features"),
            "flags": [],
            "gres_detail": [f"gpu:v100:{job.gpus}(IDX:{_indices(job)})"] if job.node else [],
            "group_id": job.uid,
            "group_name": job.user,
            "het_job_id": number(0),
            "het_job_id_set": "",
            "het_job_offset": number(0),
            "hold": job.priority == 0,
            "job_id": job.number,
            "job_resources": self._resources(job),
            "job_state": listed(job.state),
            "licenses": text("licenses"),
            "mail_user": text("mail_user"),
            "max_cpus": number(0),
            "max_nodes": number(0 if job.node else 1),
            "mcs_label": "",
            "memory_per_cpu": None if old else number(None),
            "memory_per_node": number(job.memory),
            "memory_per_tres": "",
            "minimum_cpus_per_node": number(job.cpus),
            "name": text("name", b"train"),
            "network": text("network"),
            "nice": None if old else 0,
            "node_count": number(1),
            "nodes": job.node,
            "partition": job.partition,
            "priority": number(job.priority),
            "qos": "normal",
            "requeue": True,
            "required_nodes": "",
            "restart_cnt": 0,
            "resv_name": "",
            "shared": None if old else [],
            "standard_error": text("std_err"),
            "standard_input": text("std_in", b"/dev/null"),
            "standard_output": text("std_out"),
            "start_time": number(job.started),
            "state_description": "",
            "state_reason": job.reason,
            "submit_time": number(job.submitted),
            "suspend_time": number(0),
            "system_comment": "",
            "tasks": number(1),
            "tasks_per_node": number(0) if not old else None,
            "threads_per_core": number(None),
            "time_limit": number(3600),
            "tres_alloc_str": _tres(job) if job.node else "",
            "tres_bind": "",
            "tres_freq": "",
            "tres_per_job": "",
            "tres_per_node": self._per_node(job),
            "tres_per_socket": "",
            "tres_per_task": "" if old else f"cpu={job.cpus}",
            "tres_req_str": _tres(job),
            "user_id": job.uid,
            "user_name": job.user,
            "wckey": text("wckey"),
        }

    def _resources(self, job: MadeUpJob) -> dict[str, Any]:
        if not job.node:
            return {}
        taken = set(_numbers(job))
        if self.release is Release.BOOKWORM:
            sockets = {
                str(socket): {"cores": {str(core): "allocated" for core in range(12) if 12 * socket + core in taken}}
                for socket in range(2)
            }
            node = {"nodename": job.node, "cpus_used": 0, "memory_used": 0, "memory_allocated": job.memory}
            return {
                "nodes": job.node, "allocated_cpus": job.cpus, "allocated_hosts": 1,
                "allocated_nodes": [{**node, "sockets": sockets}],
            }  # fmt: skip
        cores = [
            {
                "index": socket,
                "cores": [
                    {"index": core, "status": ["ALLOCATED" if 12 * socket + core in taken else "UNALLOCATED"]}
                    for core in range(12)
                ],
            }
            for socket in range(2)
        ]
        node = {
            "index": 0, "name": job.node, "cpus": {"count": job.cpus, "used": 0},
            "memory": {"used": 0, "allocated": job.memory}, "sockets": cores,
        }  # fmt: skip
        nodes = {"count": 1, "list": job.node, "whole": False, "allocation": [node]}
        return {"select_type": ["CORE"], "nodes": nodes, "cpus": job.cpus, "threads_per_core": {"set": False}}


def _said(out: bytes) -> Answer:
    """As `run_process` gives it."""
    return Answer(0, out.decode(errors="replace"), "")


def _column(asked: str) -> tuple[str, int, bytes]:
    """`Name:20` or `Name:|` (or neither: 20 wide): the name in small letters, the width, what stands behind it."""
    match = re.fullmatch(r"([A-Za-z_-]+)(?::\.?(\d*)(\D?))?", asked)
    if match is None:
        raise AssertionError(f"the made-up squeue knows no column {asked}")
    mark = (match[3] or "").encode()
    return match[1].lower(), int(match[2]) if match[2] else 0 if mark else 20, mark


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
