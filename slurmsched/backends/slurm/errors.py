"""What goes wrong between us and Slurm, told apart by what a person has to do about it."""

from __future__ import annotations

import re
from typing import Final

from slurmsched.backends.protocol import BackendError, NotPermittedError, UnreachableError


class NoSlurmError(BackendError):
    """Slurm's commands are not installed here, or not on PATH."""


class NoConfigurationError(BackendError):
    """Slurm's commands find no slurm.conf, or one they cannot read."""


class SlurmParseError(BackendError):
    """Slurm's text is not what it should be."""


class UnsafeCommandError(BackendError):
    """A value or a command that must not reach Slurm."""


class SubmissionRejectedError(BackendError):
    """sbatch would not have a job of ours."""


class PyslurmUnavailableError(BackendError):
    """pyslurm is not installed, or does not fit."""


class PyslurmFailedError(BackendError):
    """pyslurm did not come to an end in a poll: it crashed, hung, or needed more memory than it may have."""


_CHATTER: Final = re.compile(r"(?:scontrol|scancel|squeue|sacctmgr): (?!error|fatal)[a-z0-9_/]+: ")
_NO_ANSWER: Final = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Unexpected message received",
    "Slurm controller not responding",
    "in standby mode",
)
_NO_CONFIGURATION: Final = (
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "cannot stat file",
)
_NOT_PERMITTED: Final = ("Access/permission denied", "Invalid user id", "Protocol authentication error")


def error_from_stderr(command: str, stderr: str) -> BackendError:
    """The error that Slurm's words on standard error amount to."""
    message = last_message(stderr)
    if any(sign in stderr for sign in _NO_CONFIGURATION):
        return NoConfigurationError(f"{command} finds no usable slurm.conf: set slurm_conf in [cluster] or SLURM_CONF")
    if any(sign in stderr for sign in _NO_ANSWER):
        return UnreachableError(f"slurmctld does not answer: see 'scontrol ping' ({message})")
    if "Munge" in stderr:
        return NotPermittedError(f"munge does not vouch for us: is munged running, with the cluster's key? ({message})")
    if any(sign in stderr for sign in _NOT_PERMITTED):
        return NotPermittedError(f"{command} may not do this as the present user: {message}")
    return BackendError(f"{command} failed: {message}")


def last_message(stderr: str, default: str = "it said nothing") -> str:
    """The last line that is not the commands' own chatter, such as `scontrol: select/linear: init: ... loaded`."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not _CHATTER.match(line)]
    return lines[-1] if lines else default


def unread_reason(error: Exception) -> str:
    """Why a record is left out; of an error that is not about Slurm's text only the kind is told."""
    return str(error) if isinstance(error, SlurmParseError) else f"reading it fails ({type(error).__name__})"
