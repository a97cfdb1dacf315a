"""Submits jobs: runs sbatch with the terminal and environment of its user, which the job inherits.

`check_accepted` and `unsubmitted_job` tell of a job that is not submitted whether Slurm would take it, and how it would
wait.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import CommandResult, Commands, ProcessRunner, run_process
from slurmsched.backends.slurm.errors import (
    NoSlurmError,
    SlurmParseError,
    SubmissionRejectedError,
    UnforeseenSubmissionError,
    UnsafeCommandError,
    error_from_stderr,
)
from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.backends.slurm.jobs import with_gpu_defaults, without_memory
from slurmsched.backends.slurm.records import or_empty, parse_fields, parse_mebibytes, parse_seconds
from slurmsched.backends.slurm.requests import parse_request, unmanageable_reason
from slurmsched.model import Job, JobId, Partition, Snapshot, parse_hints

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_TEST_ONLY: Final = ("sbatch", "--test-only", "--ntasks=1", "--time=1", "--wrap=true")
"""With a time limit, which plug-ins of a site may ask for before ours is called."""
_NOT_FOUND: Final = "no {} on PATH: install Slurm's commands, or set PATH"


def run(command: Sequence[str], slurm_conf: str = "", extra_env: Mapping[str, str] = _NOTHING) -> int:
    """Runs an `sbatch` command and returns its exit code. `extra_env` is added to its environment.

    Raises NoSlurmError, UnsafeCommandError.
    """
    if not command or command[0] != "sbatch":
        raise UnsafeCommandError(f"not an sbatch command: {' '.join(command)[:80]!r}")
    try:
        return subprocess.run(list(command), env={**_environment(slurm_conf), **extra_env}, check=False).returncode
    except FileNotFoundError as error:
        raise NoSlurmError(_NOT_FOUND.format("sbatch")) from error


def submit(
    options: Sequence[str],
    script: str,
    slurm_conf: str = "",
    timeout: float = 30.0,
    runner: ProcessRunner = run_process,
    *,
    extra_env: Mapping[str, str] = _NOTHING,
) -> JobId:
    """Submits a batch script with these sbatch options and returns the job's number.

    The script may be empty if the options name its file. `extra_env` is added to the job's environment.

    Raises NoSlurmError, UnreachableError, SubmissionRejectedError.
    """
    argv = ("sbatch", "--parsable", *options)
    answer = _execute(argv, {**_environment(slurm_conf), **extra_env}, timeout, runner, script)
    job = answer.stdout.strip().partition(";")[0]
    if answer.exit_code or not job.isdecimal():
        raise SubmissionRejectedError(
            f"sbatch refused the job: {' '.join((answer.stderr or answer.stdout).split())[:200]}"
        )
    return job


def has_ended(job: JobId, slurm_conf: str = "", timeout: float = 30.0, runner: ProcessRunner = run_process) -> bool:
    """Whether a job has left the queue. Raises NoSlurmError, UnreachableError."""
    argv = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    answer = _execute(argv, _environment(slurm_conf), timeout, runner)
    if answer.exit_code and "Invalid job id" not in answer.stderr:
        raise UnreachableError(
            f"squeue does not show whether job {job} has ended: {' '.join(answer.stderr.split())[:200]}"
        )
    return not answer.stdout.strip()


def cancel(job: JobId, slurm_conf: str = "", timeout: float = 30.0, runner: ProcessRunner = run_process) -> None:
    """Cancels a job if it has not ended. Raises NoSlurmError, UnreachableError."""
    _execute(("scancel", "--quiet", job), _environment(slurm_conf), timeout, runner)


def dry_run(comment: str, slurm_conf: str = "", timeout: float = 30.0, runner: ProcessRunner = run_process) -> str:
    """The output of `sbatch --test-only` with this comment: the job_submit plugin sees the job, Slurm queues none.

    Raises NoSlurmError, UnreachableError.
    """
    answer = _execute((*_TEST_ONLY, f"--comment={comment}"), _environment(slurm_conf), timeout, runner)
    return answer.stderr + answer.stdout


_WOULD_WAIT: Final = (
    "Requested nodes are busy",
    "Required node not available",
    "Requested partition configuration not available now",
)
"""Errors of `sbatch --test-only` for jobs that sbatch would queue."""


def check_accepted(
    command: Sequence[str],
    slurm_conf: str = "",
    timeout: float = 30.0,
    runner: ProcessRunner = run_process,
    *,
    extra_env: Mapping[str, str] = _NOTHING,
) -> None:
    """Asks Slurm by `sbatch --test-only` whether it would take the job of this `sbatch` command; none is queued.

    Raises SubmissionRejectedError with Slurm's words if not, NoSlurmError, UnreachableError, UnsafeCommandError.
    """
    if not command or command[0] != "sbatch":
        raise UnsafeCommandError(f"not an sbatch command: {' '.join(command)[:80]!r}")
    argv = ("sbatch", "--test-only", *command[1:])
    answer = _execute(argv, {**_environment(slurm_conf), **extra_env, "LC_ALL": "C"}, timeout, runner)
    words = " ".join((answer.stderr or answer.stdout).split())[:300]
    said = "".join(sign if sign.isprintable() else "?" for sign in words)
    if not answer.exit_code or any(waits in said for waits in _WOULD_WAIT):
        return
    error = error_from_stderr("sbatch", answer.stderr)
    if isinstance(error, UnreachableError):
        raise error
    raise SubmissionRejectedError(f"Slurm would refuse the job: {said or 'sbatch says no reason'}")


@dataclass(frozen=True, slots=True)
class PartitionDefaults:
    """What jobs get that do not ask for it: the time limit in seconds, None for no limit, and MiB per node, 0 for all
    memory of it."""

    time_limit: int | None = None
    memory_per_node: int = 0


def read_partition_defaults(commands: Commands) -> Mapping[str, PartitionDefaults]:
    """Returns the defaults of each partition. Raises BackendError."""
    lines = commands.read("scontrol", "show", "config").splitlines()
    configured = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    of_cluster = _amount(configured.get("DefMemPerNode"))
    defaults = dict[str, PartitionDefaults]()
    for line in commands.read("scontrol", "-a", "-o", "show", "partition").splitlines():
        fields = parse_fields(line)
        longest = parse_seconds(fields.get("MaxTime"))
        usual = parse_seconds(or_empty(fields.get("DefaultTime")) or None)
        memory = 0 if _amount(fields.get("DefMemPerCPU")) else _amount(fields.get("DefMemPerNode")) or of_cluster
        defaults[fields.get("PartitionName", "")] = PartitionDefaults(longest if usual is None else usual, memory)
    return defaults


def _amount(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


_COUNT = re.compile(r"[1-9][0-9]{0,6}\Z")
_NODES = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?\Z")
_MINUTES = re.compile(r"(?:(\d{1,5})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?\Z")
_GPU_FORMS: Final = {"gres": "TresPerNode", "gpus-per-node": "TresPerNode", "gpus": "TresPerJob",
                     "gpus-per-task": "TresPerTask"}  # fmt: skip
_MEMORY_FORMS: Final = ("mem", "mem-per-cpu", "mem-per-gpu")


@dataclass(frozen=True, slots=True)
class UnsubmittedJob:
    """A job as it would wait if it were submitted now, and in sentences what is assumed of it."""

    job: Job
    assumed: tuple[str, ...] = field(default=())


def unsubmitted_job(
    options: Mapping[str, str], user: str, snapshot: Snapshot, defaults: Mapping[str, PartitionDefaults]
) -> UnsubmittedJob:
    """Returns the pending job that `sbatch` with these options (of `read_options`) would make, with the next number.

    Raises UnforeseenSubmissionError where it is not certain.
    """
    partitions = _partitions(options, snapshot)
    known = [defaults.get(partition.name, PartitionDefaults(partition.max_time)) for partition in partitions]
    try:
        fields = _fields(options, partitions, known)
        request = parse_request(fields, waiting=True)
        limit = _time_limit(options, known)
    except SlurmParseError as error:
        raise UnforeseenSubmissionError(str(error)) from error
    if why := unmanageable_reason(fields):
        raise UnforeseenSubmissionError(f"only Slurm can place it: {why}")
    newest = max((job for job in snapshot.jobs), key=lambda job: job.queue_key, default=None)
    number = max(
        (int(job.id.partition("_")[0]) for job in snapshot.jobs if job.id.partition("_")[0].isdecimal()), default=0
    )
    job = Job(
        id=str(number + 1),
        user=user,
        original_request=request,
        current_request=request,
        name=options.get("job-name", ""),
        account=options.get("account", "") or _account(user, snapshot),
        partitions=tuple(partition.name for partition in partitions),
        qos=options.get("qos", ""),
        submit_time=max(snapshot.time, newest.submit_time if newest else 0.0),
        eligible_time=snapshot.time,
        time_limit=limit,
        requeue="no-requeue" not in options,
        reservation=options.get("reservation", ""),
        comment=options.get("comment", ""),
        hints=parse_hints(options.get("comment", "")),
    )
    job = with_gpu_defaults(job, partitions)
    if any(other.original_request.memory_unscheduled for other in snapshot.jobs):
        job = without_memory(job)
    job = replace(job, current_request=job.original_request)
    return UnsubmittedJob(job, tuple(_assumed(options, job)))


def _assumed(options: Mapping[str, str], job: Job) -> Sequence[str]:
    sentences = list[str]()
    if "time" not in options:
        limit = "no time limit" if job.time_limit is None else f"its partition's time limit, {job.time_limit // 60} min"
        sentences.append(f"without --time it gets {limit}")
    if job.original_request.whole_memory:
        sentences.append("it gets all memory of its nodes: ask for less by --mem")
    return sentences


def _account(user: str, snapshot: Snapshot) -> str:
    """The account of a user with only one; empty where that is not known."""
    accounts = {one.account for one in snapshot.associations if one.user == user}
    return accounts.pop() if len(accounts) == 1 else ""


def _partitions(options: Mapping[str, str], snapshot: Snapshot) -> Sequence[Partition]:
    names = [name for name in options.get("partition", "").split(",") if name]
    names = names or [partition.name for partition in snapshot.partitions if partition.default]
    if not names:
        raise UnforeseenSubmissionError("no partition is named, and none is the default")
    if missing := [name for name in names if name not in snapshot.partitions_by_name]:
        raise UnforeseenSubmissionError(f"there is no partition {missing[0][:64]!r}")
    return [snapshot.partitions_by_name[name] for name in names]


def _fields(
    options: Mapping[str, str], partitions: Sequence[Partition], defaults: Sequence[PartitionDefaults]
) -> dict[str, str]:
    """The request as scontrol shows that of a waiting job. Raises SlurmParseError."""
    _only_one(options, ("gpus", "gpus-per-node", "gpus-per-task", "gres"))
    _only_one(options, _MEMORY_FORMS)
    _only_one(options, ("cpus-per-task", "cpus-per-gpu"))
    nodes, tasks, on_node = _nodes_and_tasks(options)
    cpus = tasks * _count_of(options, "cpus-per-task", 1)
    fields = {
        "NumNodes": nodes,
        "NumTasks": str(tasks),
        "NumCPUs": str(cpus),
        "NtasksPerN:B:S:C": f"{on_node}:0:*:*",
        "Features": options.get("constraint", ""),
        "ReqNodeList": options.get("nodelist", ""),
        "ExcNodeList": options.get("exclude", ""),
        "OverSubscribe": "NO" if "exclusive" in options else "OK",
        "Reservation": options.get("reservation", ""),
    }
    for name, key in _GPU_FORMS.items():
        if name in options:
            fields[key] = options[name] if name == "gres" else _gpus(options[name])
    if "cpus-per-gpu" in options:
        fields["CpusPerTres"] = f"gres/gpu:{_count_of(options, 'cpus-per-gpu', 1)}"
    return fields | _memory_fields(options, partitions, defaults)


def _memory_fields(
    options: Mapping[str, str], partitions: Sequence[Partition], defaults: Sequence[PartitionDefaults]
) -> dict[str, str]:
    if "mem-per-gpu" in options:
        return {"MemPerTres": f"gres/gpu:{parse_mebibytes(options['mem-per-gpu'].upper())}"}
    if "mem-per-cpu" in options:
        return {"MinMemoryCPU": options["mem-per-cpu"].upper()}
    if "mem" in options:
        return {"MinMemoryNode": options["mem"].upper()}
    per_node = max((known.memory_per_node for known in defaults), default=0)
    per_cpu = max((partition.memory_per_cpu for partition in partitions), default=0)
    return {"MinMemoryCPU": f"{per_cpu}M"} if per_cpu and not per_node else {"MinMemoryNode": f"{per_node}M"}


def _only_one(options: Mapping[str, str], names: Sequence[str]) -> None:
    if len(given := [f"--{name}" for name in names if name in options]) > 1:
        raise UnforeseenSubmissionError(f"it has both {given[0]} and {given[1]}")


def _count_of(options: Mapping[str, str], name: str, default: int) -> int:
    if name not in options:
        return default
    if not _COUNT.match(options[name]):
        raise UnforeseenSubmissionError(f"--{name} is no number: {options[name][:24]!r}")
    return int(options[name])


def _nodes_and_tasks(options: Mapping[str, str]) -> tuple[str, int, int]:
    """The nodes as scontrol shows them, the tasks, and the tasks on each node, 0 if these are not asked for."""
    on_node, tasks = _count_of(options, "ntasks-per-node", 0), _count_of(options, "ntasks", 0)
    named = len(expand_hostlist(options.get("nodelist", "")))
    if "nodes" in options:
        match = _NODES.match(options["nodes"])
        if match is None:
            raise UnforeseenSubmissionError(f"--nodes is neither a number nor a range: {options['nodes'][:24]!r}")
        fewest, most = int(match[1]), int(match[2] or match[1])
        shown = f"{fewest}-{most}" if most > 1 else "1"
    else:
        fewest = max(-(-tasks // on_node) if on_node and tasks else 1, named)
        shown = str(fewest)
    return shown, tasks or on_node * fewest or fewest, on_node


def _gpus(text: str) -> str:
    """`2`, `v100:2` or `v100`, several with commas, as scontrol shows them."""
    return ",".join(f"gres/gpu:{part}" for part in text.removeprefix("gpu:").split(","))


def _time_limit(options: Mapping[str, str], defaults: Sequence[PartitionDefaults]) -> int | None:
    """Seconds; the shortest of the partitions' defaults, None for no limit."""
    if "time" not in options:
        return min((known.time_limit for known in defaults if known.time_limit is not None), default=None)
    text = options["time"]
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    match = _MINUTES.match(text)
    if match is None:
        raise UnforeseenSubmissionError(f"--time is no time: {text[:24]!r}")
    days, first, second, third = match.groups()
    # [days-]hours:minutes:seconds, days-hours[:minutes], minutes[:seconds]
    hours, minutes, seconds = (None, first, second) if days is None and third is None else (first, second, third)
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    return -(-whole // 60) * 60 or None


def _execute(
    argv: Sequence[str], env: Mapping[str, str], timeout: float, runner: ProcessRunner, stdin: str = ""
) -> CommandResult:
    try:
        return runner(argv, stdin, timeout, env)
    except FileNotFoundError as error:
        raise NoSlurmError(_NOT_FOUND.format(argv[0])) from error
    except TimeoutError as error:
        raise UnreachableError(f"slurmctld did not answer {argv[0]} within {timeout:g} s") from error


def _environment(slurm_conf: str) -> dict[str, str]:
    return {**os.environ, "SLURM_CONF": slurm_conf} if slurm_conf else dict(os.environ)
