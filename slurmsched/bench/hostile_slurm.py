"""A fake of Slurm's commands, which prints jobs as scontrol and squeue of three releases do.

Text of users is unescaped, as in Slurm's output. An unknown command raises AssertionError.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from slurmsched.backends.slurm.commands import CommandResult

GPUS: Final = 8
"""GPUs of a node, which has 24 CPUs and 500 GiB, as the nodes of the mini cluster."""

_MAX_TEXT: Final = 1024
"""Bytes to which slurmctld limits most text; arguments and the submit line may be much longer."""
_OWNER_COLUMNS: Final = {
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
"""By squeue's column: the field with the owner's text, and what Slurm prints without it."""


class SlurmRelease(StrEnum):
    """The Slurm release whose output format is used, named after Debian's."""

    BOOKWORM = "22.05"
    TRIXIE = "24.11"
    SID = "26.05"


@dataclass(slots=True)
class FakeJob:
    """A job: Slurm's own values, and in `text` its owner's text by field. Times are Unix seconds.

    It requests `gpus` GPUs of one type on one node. A running job has the GPUs `indices` of `node`.
    """

    number: int
    user: str
    uid: int
    gpus: int
    submit_time: int
    priority: int = 100
    reason: str = "None"
    partition: str = "gpu"
    node: str = ""
    indices: tuple[int, ...] = ()
    array_tasks: str = ""
    start_time: int = 0
    text: Mapping[str, bytes] = field(default_factory=dict)
    scontrol_line: bytes = b""
    """Cache of its record in scontrol."""
    squeue_cells: dict[str, bytes] = field(default_factory=dict)
    """Cache of its values in squeue."""

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

    def forget_printed(self) -> None:
        """Clears the caches of its output after a change."""
        self.scontrol_line = b""
        self.squeue_cells = {}

    def owner_text(self, name: str, default: bytes = b"") -> bytes:
        """Returns the owner's text in a field, cut to slurmctld's limit."""
        text = self.text.get(name, default)
        return text if name in ("arguments", "submit_line") else text[:_MAX_TEXT]


def scontrol_record(job: FakeJob, release: SlurmRelease) -> bytes:
    """Returns the line of `scontrol -d -o show job`."""
    if not job.scontrol_line:
        job.scontrol_line = _record_head(job, release) + _record_tail(job, release) + b"\n"
    return job.scontrol_line


def squeue_values(job: FakeJob, release: SlurmRelease) -> dict[str, bytes]:
    """Returns squeue's values by the column's name in lower case."""
    if not job.squeue_cells:
        job.squeue_cells = {column: job.owner_text(name, default) for column, (name, default) in _OWNER_COLUMNS.items()}
        job.squeue_cells |= {column: str(value).encode() for column, value in _slurm_columns(job, release).items()}
    return job.squeue_cells


def _slurm_columns(job: FakeJob, release: SlurmRelease) -> dict[str, object]:
    return {
        "jobid": job.number,
        "jobarrayid": f"{job.number}_[{job.array_tasks}]" if job.array_tasks else job.number,
        "arrayjobid": job.number,
        "allocnodes": "login", "ntpernode": "0", "exclusive": "NO",
        "arraytaskid": job.array_tasks or "N/A",
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
        "submittime": _format_time(job.submit_time),
        "eligibletime": _format_time(job.submit_time),
        "starttime": _format_time(job.start_time) if job.start_time else "N/A",
        "endtime": _format_time(_end_time(job)) if job.start_time else "N/A",
        "timelimit": "2-12:00:00",
        "timeused": "1:00:00" if job.node else "0:00",
        "nodelist": job.node,
        "nodes": 1, "numnodes": 1, "numcpus": job.cpus, "numtasks": 1, "cpus-per-task": job.cpus,
        "minmemory": f"{job.memory}M", "mincpus": job.cpus, "maxnodes": 0 if job.node else 1, "maxcpus": 0,
        "dependency": "(null)", "reservation": "(null)", "system_comment": "(null)", "requeue": 1, "restartcnt": 0,
        "reqnodes": "", "excnodes": "", "batchflag": 1, "hetjobid": "N/A", "hetjoboffset": "N/A",
        "admin_comment": "(null)",
        "tres-alloc": _tres(job), "tres-per-node": _tres_per_node(job, release), "tres": _tres_per_node(job, release),
        "tres-per-task": "N/A" if release is SlurmRelease.BOOKWORM else f"cpu={job.cpus}",
        "tres-per-job": "N/A", "tres-per-socket": "N/A", "cpus-per-tres": "N/A", "mem-per-tres": "N/A",
        "oversubscribe": "NO" if release is SlurmRelease.SID else "OK", "contiguous": 0, "threads": "*",
        "sct": "*:*:*", "ntpersocket": "N/A", "ntpercore": "N/A", "corespec": "N/A", "mintmpdisk": 0, "reqswitch": 0,
        "segmentsize": 0, "reboot": 0, "burstbuffer": "(null)", "prefer": "(null)", "mintime": "0:00",
    }  # fmt: skip


def _record_head(job: FakeJob, release: SlurmRelease) -> bytes:
    """The record up to and including Network=."""
    owner_text = job.owner_text
    array = f"ArrayJobId={job.number} ArrayTaskId={job.array_tasks} " if job.array_tasks else ""
    wckey = b" WCKey=" + owner_text("wckey") if "wckey" in job.text else b""
    requested = _tres(job)
    tres = (
        f"TRES={requested}"
        if release is SlurmRelease.BOOKWORM
        else f"ReqTRES={requested} AllocTRES={_allocated_tres(job)}"
    )
    submitted, host = _format_time(job.submit_time), f" BatchHost={job.node}" if job.node else ""
    sharing = "NO Exclusive=NO" if release is SlurmRelease.SID else "OK"
    return b"".join(
        (
            f"JobId={job.number} {array}JobName=".encode(),
            owner_text("name", b"train"),
            b" SLUID=sCD1M7Y0HMZ900" if release is SlurmRelease.SID else b"",
            f" UserId={job.user}({job.uid}) GroupId={job.user}({job.uid}) MCS_label=N/A Priority={job.priority}"
            " Nice=0 Account=".encode(),
            owner_text("account", b"vision"),
            b" QOS=normal",
            wckey,
            f" JobState={job.state} Reason={job.reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0"
            f" ExitCode=0:0 DerivedExitCode=0:0 RunTime={'01:00:00' if job.node else '00:00:00'}"
            f" TimeLimit=2-12:00:00 TimeMin=N/A SubmitTime={submitted} EligibleTime={submitted}"
            f" AccrueTime={submitted} StartTime={_format_time(job.start_time)} EndTime={_format_time(_end_time(job))}"
            f" Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval={submitted} Scheduler=Main"
            f" Partition={job.partition} AllocNode:Sid=login:122 ReqNodeList=(null) ExcNodeList=(null)"
            f" NodeList={job.node}{host} NumNodes=1{'' if job.node else '-1'}"
            f" NumCPUs={job.cpus} NumTasks=1 CPUs/Task={job.cpus} ReqB:S:C:T=0:0:*:* {tres} Socks/Node=*"
            f" NtasksPerN:B:S:C=0:0:*:* CoreSpec=* {_allocation_details(job, release)}MinCPUsNode={job.cpus}"
            f" MinMemoryNode={job.memory}M MinTmpDiskNode=0 Features=".encode(),
            owner_text("features", b"(null)"),
            f" DelayBoot=00:00:00 OverSubscribe={sharing} Contiguous=0 Licenses=".encode(),
            owner_text("licenses", b"(null)"),
            b" LicensesAlloc=(null)" if release is SlurmRelease.SID else b"",
            b" Network=",
            owner_text("network", b"(null)"),
        )
    )


def _allocation_details(job: FakeJob, release: SlurmRelease) -> str:
    if not job.node:
        return ""
    gap = " " if release is SlurmRelease.SID else "   "
    return (
        f"JOB_GRES=gpu:v100:{job.gpus}{gap}Nodes={job.node} CPU_IDs={_cores(job)} Mem={job.memory}"
        f" GRES=gpu:v100:{job.gpus}(IDX:{_indices(job)}) "
    )


def _record_tail(job: FakeJob, release: SlurmRelease) -> bytes:
    """The record from Command= on. 22.05 shows the arguments there, 26.05 the whole command in SubmitLine=."""
    owner_text = job.owner_text
    parts = [b" Command=/home/u/job.sh"]
    if release is SlurmRelease.BOOKWORM and "arguments" in job.text:
        parts += [b" ", owner_text("arguments")]
    if release is SlurmRelease.SID:
        parts += [b" SubmitLine=sbatch job.sh ", owner_text("submit_line"), owner_text("arguments")]
    parts += [b" WorkDir=", owner_text("work_dir", b"/home/u")]
    gap = b"" if release is SlurmRelease.SID else b" "
    if "comment" in job.text:
        parts += [b" Comment=", owner_text("comment"), gap]
    if "extra" in job.text and release is not SlurmRelease.BOOKWORM:
        parts += [b" Extra=", owner_text("extra"), gap]
    parts += [
        b" StdErr=",
        owner_text("std_err"),
        b" StdIn=",
        owner_text("std_in", b"/dev/null"),
        b" StdOut=",
        owner_text("std_out"),
    ]
    parts += [
        b" Power=" if release is SlurmRelease.BOOKWORM else b"",
        b" TresPerNode=",
        _tres_per_node(job, release).encode(),
    ]
    if release is not SlurmRelease.BOOKWORM:
        parts.append(b" TresPerTask=cpu=%d" % job.cpus)
    if "mail_user" in job.text:
        parts += [b" MailUser=", owner_text("mail_user"), b" MailType=END"]
    if "container" in job.text:
        parts += [b" Container=", owner_text("container"), b" ContainerID=(null)"]
    parts.append(gap)
    return b"".join(parts)


def _tres_per_node(job: FakeJob, release: SlurmRelease) -> str:
    return f"{'gres:gpu' if release is SlurmRelease.BOOKWORM else 'gres/gpu'}:v100:{job.gpus}"


@lru_cache(maxsize=4096)
def _format_time(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%S") if timestamp else "Unknown"


def _end_time(job: FakeJob) -> int:
    return job.start_time + 216_000 if job.start_time else 0


def _tres(job: FakeJob) -> str:
    return f"cpu={job.cpus},mem={job.memory}M,node=1,billing={job.cpus},gres/gpu={job.gpus}"


def _allocated_tres(job: FakeJob) -> str:
    return _tres(job) if job.node else "(null)"


def _indices(job: FakeJob) -> str:
    return ",".join(map(str, job.indices))


def _core_numbers(job: FakeJob) -> list[int]:
    """Returns the CPU numbers: three for each GPU."""
    return [3 * index + core for index in job.indices for core in range(3)]


def _cores(job: FakeJob) -> str:
    return ",".join(map(str, _core_numbers(job)))


_CPUS, _MEMORY = 24, 512_000
_FORMAT_LETTER: Final = re.compile(r"%(\.?)(\d*)([A-Za-z])")
_LETTER_COLUMNS: Final = {"A": "jobid", "x": "excnodes"}
"""squeue's short column names."""


class _SqueueColumn(NamedTuple):
    """The name in lower case, the width in bytes (0: as wide as the value), whether values stand at the right of it,
    the separator after it, and the name as given."""

    name: str
    width: int
    right: bool
    mark: bytes = b""
    given: str = ""


_UNKNOWN_COLUMNS: Final = {
    SlurmRelease.BOOKWORM: frozenset({"excnodes", "exclusive", "segmentsize"}),
    SlurmRelease.TRIXIE: frozenset({"exclusive", "segmentsize"}),
}
"""Columns of squeue that a release does not know."""


class FakeSlurm:
    """Replaces `run_process`. Holds and releases jobs, and supports no other change.

    `own_cpu_seconds` is the CPU time of its own work, to be subtracted from that of the parser.
    """

    def __init__(self, release: SlurmRelease, nodes: Sequence[str], jobs: Sequence[FakeJob]) -> None:
        self.release = release
        self.nodes = tuple(nodes)
        self.jobs = list(jobs)
        self.own_cpu_seconds = 0.0

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        del timeout, env
        began = time.thread_time()
        try:
            return self._answer(argv, stdin)
        finally:
            self.own_cpu_seconds += time.thread_time() - began

    def _answer(self, argv: Sequence[str], given: str) -> CommandResult:
        lines = given.splitlines()
        match [*argv]:
            case ["scontrol", *flags] if "show" not in flags:
                return self._answer_queries(lines) if flags else self._apply_changes(lines)
            case ["scontrol", *flags, "show", "job"]:
                return self._show_jobs(self.jobs, "-v" in flags)
            case ["scontrol", *flags, "show", "job", number]:
                return self._show_jobs(self._jobs_of(number), "-v" in flags)
            case ["squeue", *words]:
                return self._squeue(words)
        return _command_result(self._list(argv))

    def _answer_queries(self, lines: Sequence[str]) -> CommandResult:
        """Answers `show` lines on standard input. Without a terminal scontrol prints only the answers."""
        output: list[bytes] = []
        errors = ""
        for line in lines:
            match line.split():
                case ["show", "hostnames", name]:
                    output.append(f"{name}\n".encode())
                case ["show", "job", number]:
                    jobs = self._jobs_of(number)
                    output += map(self._job_record, jobs)
                    errors += "" if jobs else "slurm_load_jobs error: Invalid job id specified\n"
                case _:
                    raise AssertionError(f"the fake scontrol does not know the query {line}")
        return _command_result(b"".join(output), errors)

    def _list(self, argv: Sequence[str]) -> bytes:
        match [*argv]:
            case ["sacctmgr", "-nP", "show", "user", name, "format=User,AdminLevel"]:
                return f"{name.removeprefix('name=')}|Operator\n".encode()
            case ["scontrol", *_, "show", what]:
                return self._show_cluster(what)
        raise AssertionError(f"the fake Slurm does not know the command {' '.join(argv)}")

    def _show_cluster(self, what: str) -> bytes:
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
                return b"".join(map(self._node_record, self.nodes))
        raise AssertionError(f"the fake scontrol cannot show {what}")

    def _jobs_of(self, number: str) -> list[FakeJob]:
        return [job for job in self.jobs if str(job.number) == number]

    def _apply_changes(self, lines: Sequence[str]) -> CommandResult:
        for line in lines:
            verb, _, number = line.partition(" ")
            if verb not in ("hold", "release"):
                raise AssertionError(f"the fake scontrol does not know the change {line}")
            for job in self._jobs_of(number):
                job.priority, job.reason = (0, "JobHeldAdmin") if verb == "hold" else (100, "None")
                job.forget_printed()
        return CommandResult(0, "", "")

    def _show_jobs(self, jobs: Sequence[FakeJob], verbose: bool) -> CommandResult:
        if not jobs:
            return CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        head = b"last_update_time=2026-11-21T01:26:49, records=%d\n" % len(jobs) if verbose else b""
        return _command_result(head + b"".join(map(self._job_record, jobs)))

    def _squeue(self, arguments: Sequence[str]) -> CommandResult:
        chosen = self.jobs
        if "-j" in arguments:
            numbers = set(arguments[arguments.index("-j") + 1].split(","))
            chosen = [job for job in self.jobs if str(job.number) in numbers]
        if "-o" in arguments:
            form = arguments[arguments.index("-o") + 1]
            short = tuple(
                _SqueueColumn(_LETTER_COLUMNS[letter], int(width or 0), bool(right))
                for right, width, letter in _FORMAT_LETTER.findall(form)
            )
            return _command_result(b"".join(self._squeue_row(job, short) for job in chosen))
        if "-O" in arguments:
            columns = _parse_columns(arguments[arguments.index("-O") + 1])
            known = [column for column in columns if column.name not in _UNKNOWN_COLUMNS.get(self.release, ())]
            complaints = (
                f"squeue: error: Invalid job format specification: {column.given}\n"
                for column in columns
                if column not in known
            )
            return _command_result(b"".join(self._squeue_row(job, known) for job in chosen), "".join(complaints))
        raise AssertionError(f"the fake Slurm does not know the command squeue {' '.join(arguments)}")

    def _node_record(self, name: str) -> bytes:
        node_jobs = [job for job in self.jobs if job.node == name]
        taken = sorted(index for job in node_jobs for index in job.indices)
        used = f"gpu:v100:{len(taken)}(IDX:{','.join(map(str, taken)) or 'N/A'})"
        state = "IDLE" if not taken else "ALLOCATED" if len(taken) == GPUS else "MIXED"
        return (
            f"NodeName={name} Arch=x86_64 CoresPerSocket=12  CPUAlloc={sum(job.cpus for job in node_jobs)}"
            f" CPUEfctv={_CPUS} CPUTot={_CPUS} CPULoad=1.70 AvailableFeatures=v100 ActiveFeatures=v100"
            f" Gres=gpu:v100:{GPUS} GresDrain=N/A GresUsed={used} NodeAddr={name} NodeHostName={name}"
            f" RealMemory={_MEMORY} AllocMem={sum(job.memory for job in node_jobs)} Sockets=2 Boards=1"
            f" State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,debug \n"
        ).encode()

    def _job_record(self, job: FakeJob) -> bytes:
        return scontrol_record(job, self.release)

    def _squeue_row(self, job: FakeJob, columns: Sequence[_SqueueColumn]) -> bytes:
        """Returns a line of `squeue -O`: each column padded and cut to its width, or followed by its separator."""
        values, row = squeue_values(job, self.release), []
        for column in columns:
            if column.name not in values:
                raise AssertionError(f"the fake squeue does not know the column {column.name}")
            value = values[column.name][: column.width or None]
            row.append(value.rjust(column.width) if column.right else value.ljust(column.width))
            row.append(column.mark)
        return b"".join(row) + b"\n"


def _command_result(out: bytes, errors: str = "") -> CommandResult:
    """Returns the output as `run_process` does."""
    return CommandResult(0, out.decode(errors="replace"), errors, out)


@lru_cache(maxsize=16)
def _parse_columns(form: str) -> tuple[_SqueueColumn, ...]:
    return tuple(_parse_column(column) for column in form.split(","))


def _parse_column(column: str) -> _SqueueColumn:
    """Parses `Name:20`, `Name:|`, or `Name`, which is 20 wide."""
    match = re.fullmatch(r"([A-Za-z_-]+)(?::(\.?)(\d*)(\D?))?", column)
    if match is None:
        raise AssertionError(f"the fake squeue does not know the column {column}")
    mark = (match[4] or "").encode()
    width = int(match[3]) if match[3] else 0 if mark else 20
    return _SqueueColumn(match[1].lower(), width, bool(match[2]), mark, match[1])
