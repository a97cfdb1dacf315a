"""Submission: sbatch run as its user runs it, with his terminal and his environment, which the job inherits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import Answer, Run, run_process
from slurmsched.backends.slurm.errors import NoSlurmError, RejectedError, UnsafeError
from slurmsched.model import JobId

__all__ = ["cancel", "has_ended", "rehearse", "run", "submit"]

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_REHEARSAL: Final = ("sbatch", "--test-only", "--ntasks=1", "--wrap=true")
_NOT_FOUND: Final = "no {} on PATH: install Slurm's commands, or set PATH"


def run(command: Sequence[str], slurm_conf: str = "", told: Mapping[str, str] = _NOTHING) -> int:
    """Run an `sbatch` command and give its exit code; `told` is what its environment has beside ours.

    Raises NoSlurmError, UnsafeError.
    """
    if not command or command[0] != "sbatch":
        raise UnsafeError(f"not an sbatch command: {' '.join(command)[:80]!r}")
    try:
        return subprocess.run(list(command), env={**_own(slurm_conf), **told}, check=False).returncode
    except FileNotFoundError as error:
        raise NoSlurmError(_NOT_FOUND.format("sbatch")) from error


def submit(
    options: Sequence[str],
    script: str,
    slurm_conf: str = "",
    timeout: float = 30.0,
    process: Run = run_process,
    *,
    told: Mapping[str, str] = _NOTHING,
) -> JobId:
    """Queue a batch script with these options of sbatch; the job's number. The script may be empty where the options
    name its file. `told` is what the job's environment has beside ours.

    Raises NoSlurmError, UnreachableError, RejectedError.
    """
    argv = ("sbatch", "--parsable", *options)
    answer = _ask(argv, {**_own(slurm_conf), **told}, timeout, process, script)
    job = answer.out.strip().partition(";")[0]
    if answer.code or not job.isdecimal():
        raise RejectedError(f"sbatch refused the job: {' '.join((answer.error or answer.out).split())[:200]}")
    return job


def has_ended(job: JobId, slurm_conf: str = "", timeout: float = 30.0, process: Run = run_process) -> bool:
    """Whether a job of ours has left the queue. Raises NoSlurmError, UnreachableError."""
    argv = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    answer = _ask(argv, _own(slurm_conf), timeout, process)
    if answer.code and "Invalid job id" not in answer.error:
        raise UnreachableError(f"squeue says nothing of job {job}: {' '.join(answer.error.split())[:200]}")
    return not answer.out.strip()


def cancel(job: JobId, slurm_conf: str = "", timeout: float = 30.0, process: Run = run_process) -> None:
    """Remove a job of ours, if it is still there. Raises NoSlurmError, UnreachableError."""
    _ask(("scancel", "--quiet", job), _own(slurm_conf), timeout, process)


def rehearse(comment: str, slurm_conf: str = "", timeout: float = 30.0, process: Run = run_process) -> str:
    """All that sbatch says of a job with this comment, which job_submit sees and nobody queues.

    Raises NoSlurmError, UnreachableError.
    """
    answer = _ask((*_REHEARSAL, f"--comment={comment}"), _own(slurm_conf), timeout, process)
    return answer.error + answer.out


def _ask(argv: Sequence[str], env: Mapping[str, str], timeout: float, process: Run, given: str = "") -> Answer:
    try:
        return process(argv, given, timeout, env)
    except FileNotFoundError as error:
        raise NoSlurmError(_NOT_FOUND.format(argv[0])) from error
    except TimeoutError as error:
        raise UnreachableError(f"slurmctld did not answer {argv[0]} within {timeout:g} s") from error


def _own(slurm_conf: str) -> dict[str, str]:
    return {**os.environ, "SLURM_CONF": slurm_conf} if slurm_conf else dict(os.environ)
