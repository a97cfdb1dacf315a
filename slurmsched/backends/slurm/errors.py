"""What goes wrong between us and Slurm, told apart by what a person has to do about it."""

from __future__ import annotations

import re
from typing import Final

from slurmsched.backends.protocol import BackendError, NotPermittedError, UnreachableError

__all__ = [
    "NoConfigurationError",
    "NoSlurmError",
    "NotUnderstoodError",
    "PyslurmEndedError",
    "PyslurmError",
    "RejectedError",
    "UnsafeError",
    "explained",
    "last_words",
    "why_unread",
]


class NoSlurmError(BackendError):
    """Slurm's commands are not installed here, or not on PATH."""


class NoConfigurationError(BackendError):
    """Slurm's commands find no slurm.conf, or one they cannot read."""


class NotUnderstoodError(BackendError):
    """Slurm's text is not what it should be."""


class UnsafeError(BackendError):
    """A value or a command that must not reach Slurm."""


class RejectedError(BackendError):
    """sbatch would not have a job of ours."""


class PyslurmError(BackendError):
    """pyslurm is not installed, or does not fit."""


class PyslurmEndedError(BackendError):
    """pyslurm did not come to an end in a poll: it crashed, hung, or needed more memory than it may have."""


_CHATTER: Final = re.compile(r"(?:scontrol|scancel|squeue|sacctmgr): (?!error|fatal)[a-z0-9_/]+: ")
_SILENT: Final = (
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
_NOT_ALLOWED: Final = ("Access/permission denied", "Invalid user id", "Protocol authentication error")


def explained(command: str, said: str) -> BackendError:
    """The error that Slurm's words on standard error amount to."""
    last = last_words(said)
    if any(sign in said for sign in _NO_CONFIGURATION):
        return NoConfigurationError(f"{command} finds no usable slurm.conf: set slurm_conf in [cluster] or SLURM_CONF")
    if any(sign in said for sign in _SILENT):
        return UnreachableError(f"slurmctld does not answer: see 'scontrol ping' ({last})")
    if "Munge" in said:
        return NotPermittedError(f"munge does not vouch for us: is munged running, with the cluster's key? ({last})")
    if any(sign in said for sign in _NOT_ALLOWED):
        return NotPermittedError(f"{command} may not do this as the present user: {last}")
    return BackendError(f"{command} failed: {last}")


def last_words(said: str, otherwise: str = "it said nothing") -> str:
    """The last line that is not the commands' own chatter, such as `scontrol: select/linear: init: ... loaded`."""
    words = [line.strip() for line in said.splitlines() if line.strip() and not _CHATTER.match(line)]
    return words[-1] if words else otherwise


def why_unread(error: Exception) -> str:
    """Why a record is left out; of an error that is not about Slurm's text only the kind is told."""
    return str(error) if isinstance(error, NotUnderstoodError) else f"reading it fails ({type(error).__name__})"
