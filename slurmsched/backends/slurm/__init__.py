"""The backend for a real Slurm cluster, read by commands or by pyslurm and changed by commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

from slurmsched.backends.protocol import Backend, BackendError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource, PollSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import (
    NoConfigurationError,
    NoSlurmError,
    PyslurmFailedError,
    PyslurmUnavailableError,
    SlurmParseError,
    UnsafeCommandError,
)
from slurmsched.backends.slurm.hostlist import expand_hostlist, fold_hostlist
from slurmsched.backends.slurm.pyslurm_source import PyslurmSource
from slurmsched.settings.definition import ClusterSettings

__all__ = [
    "NoConfigurationError",
    "NoSlurmError",
    "PyslurmFailedError",
    "PyslurmUnavailableError",
    "SlurmBackend",
    "SlurmParseError",
    "UnsafeCommandError",
    "connect",
    "expand_hostlist",
    "fold_hostlist",
]


def connect(cluster: ClusterSettings, clock: Callable[[], float] = time.time) -> Backend:
    """The backend that the settings name. Runs no command yet.

    `auto` uses pyslurm where it is installed, and commands if the first poll shows that it does not fit this Slurm.
    Raises PyslurmUnavailableError if pyslurm is required but not installed, BackendError for an unknown backend.
    """
    commands = Commands(cluster.timeout, cluster.slurm_conf)
    if cluster.backend not in ("auto", "commands", "pyslurm"):
        raise BackendError(f"no backend {cluster.backend!r}: set auto, commands or pyslurm in [cluster]")
    required, installed = cluster.backend == "pyslurm", find_spec("pyslurm") is not None
    if required and not installed:
        raise PyslurmUnavailableError(
            "pyslurm is not installed: set backend = 'commands', or install pyslurm for this Slurm"
        )
    source: PollSource = CommandSource()
    if installed and cluster.backend != "commands":
        source = PyslurmSource(clock, cluster.pyslurm_memory_max, required)
    return SlurmBackend(commands, source, clock, associations=cluster.associations, narrows=cluster.narrow)
