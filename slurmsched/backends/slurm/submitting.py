"""Submission: sbatch run as its user runs it, with his terminal and his environment, which the job inherits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import Run, run_process
from slurmsched.backends.slurm.errors import NoSlurmError, RejectedError, UnsafeError
from slurmsched.model import JobId

__all__ = ["rehearse", "run", "submit"]

_REHEARSAL: Final = ("sbatch", "--test-only", "--ntasks=1", "--wrap=true")
_NO_SBATCH: Final = "no sbatch on PATH: install Slurm's commands, or set PATH"


def run(command: Sequence[str], slurm_conf: str = "") -> int:
    """Run an `sbatch` command and give its exit code. Raises NoSlurmError, UnsafeError."""
    if not command or command[0] != "sbatch":
        raise UnsafeError(f"not an sbatch command: {' '.join(command)[:80]!r}")
    try:
        return subprocess.run(list(command), env=_own(slurm_conf), check=False).returncode
    except FileNotFoundError as error:
        raise NoSlurmError(_NO_SBATCH) from error


def submit(
    options: Sequence[str], script: str, slurm_conf: str = "", timeout: float = 30.0, process: Run = run_process
) -> JobId:
    """Queue a batch script with these options of sbatch; the job's number.

    Raises NoSlurmError, UnreachableError, RejectedError.
    """
    try:
        answer = process(("sbatch", "--parsable", *options), script, timeout, _own(slurm_conf))
    except FileNotFoundError as error:
        raise NoSlurmError(_NO_SBATCH) from error
    except TimeoutError as error:
        raise UnreachableError(f"slurmctld did not answer sbatch within {timeout:g} s") from error
    job = answer.out.strip().partition(";")[0]
    if answer.code or not job.isdecimal():
        raise RejectedError(f"sbatch refused the job: {' '.join((answer.error or answer.out).split())[:200]}")
    return job


def rehearse(comment: str, slurm_conf: str = "", timeout: float = 30.0, process: Run = run_process) -> str:
    """All that sbatch says of a job with this comment, which job_submit sees and nobody queues.

    Raises NoSlurmError, UnreachableError.
    """
    try:
        answer = process((*_REHEARSAL, f"--comment={comment}"), "", timeout, _own(slurm_conf))
    except FileNotFoundError as error:
        raise NoSlurmError(_NO_SBATCH) from error
    except TimeoutError as error:
        raise UnreachableError(f"slurmctld did not answer sbatch within {timeout:g} s") from error
    return answer.error + answer.out


def _own(slurm_conf: str) -> dict[str, str]:
    return {**os.environ, "SLURM_CONF": slurm_conf} if slurm_conf else dict(os.environ)
