"""Errors of the Slurm backend, one class for each thing that an administrator has to do."""

from __future__ import annotations

import re
from typing import Final

from slurmsched.backends.protocol import BackendError, NotPermittedError, UnreachableError


class RateLimitedError(UnreachableError):
    """slurmctld answers that this user sends too many requests."""


class NoSlurmError(BackendError):
    """Slurm's commands are not installed here, or not on PATH."""


class NoConfigurationError(BackendError):
    """Slurm's commands find no slurm.conf, or cannot read it."""


class SlurmParseError(BackendError):
    """Slurm's output cannot be parsed."""


class UnsafeCommandError(BackendError):
    """A value or a command is not allowed to reach Slurm."""


class SubmissionRejectedError(BackendError):
    """sbatch rejected a job."""


class UnforeseenSubmissionError(BackendError):
    """It cannot be told for certain what a submission asks for, so nothing is forecast of it."""


class PyslurmUnavailableError(BackendError):
    """pyslurm is not installed, or belongs to another release of Slurm."""


class PyslurmFailedError(BackendError):
    """A poll by pyslurm failed: it crashed, hung, exceeded its memory limit, or got no answer."""


_INFO_LINE: Final = re.compile(r"(?:scontrol|scancel|squeue|sacctmgr): (?!error|fatal)[a-z0-9_/]+: ")
_NO_ANSWER: Final = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Unexpected message received",
    "Slurm controller not responding",
    "in standby mode",
)
_RATE_LIMITED: Final = "Rate limit exceeded"
"""What SLURMCTLD_COMMUNICATIONS_BACKOFF is called; Slurm's own commands wait instead of printing it."""
_NO_CONFIGURATION: Final = (
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "cannot stat file",
)
_NOT_PERMITTED: Final = ("Access/permission denied", "Invalid user id", "Protocol authentication error")


def error_from_stderr(command: str, stderr: str) -> BackendError:
    """The error that a command's standard error stands for."""
    message = last_message(stderr)
    if any(sign in stderr for sign in _NO_CONFIGURATION):
        return NoConfigurationError(f"{command} finds no usable slurm.conf: set slurm_conf in [cluster] or SLURM_CONF")
    if _RATE_LIMITED in stderr:
        return RateLimitedError("slurmctld takes no more requests of this user for now (rl_enable limits their rate)")
    if any(sign in stderr for sign in _NO_ANSWER):
        return UnreachableError(f"slurmctld does not answer: see 'scontrol ping' ({message})")
    if "Munge" in stderr:
        return NotPermittedError(
            f"munge does not authenticate this process: is munged running with the cluster's key? ({message})"
        )
    if any(sign in stderr for sign in _NOT_PERMITTED):
        return NotPermittedError(f"{command} is not permitted to the present user: {message}")
    return BackendError(f"{command} failed: {message}")


def last_message(stderr: str, default: str = "it printed no message") -> str:
    """The last line that is not informational, such as `scontrol: select/linear: init: ... loaded`."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not _INFO_LINE.match(line)]
    return lines[-1] if lines else default


def unread_reason(error: Exception) -> str:
    """Why a record is left out. Of an error other than SlurmParseError only the class is shown."""
    return str(error) if isinstance(error, SlurmParseError) else f"reading it fails ({type(error).__name__})"
