"""Submits jobs: runs sbatch with the terminal and environment of its user, which the job inherits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import CommandResult, ProcessRunner, run_process
from slurmsched.backends.slurm.errors import NoSlurmError, SubmissionRejectedError, UnsafeCommandError
from slurmsched.model import JobId

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_TEST_ONLY: Final = ("sbatch", "--test-only", "--ntasks=1", "--wrap=true")
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
