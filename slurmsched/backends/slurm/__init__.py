"""A real Slurm: the one place that runs its commands."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurmsched.backends.protocol import Backend, BackendError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import (
    NoConfigurationError,
    NoSlurmError,
    NotUnderstoodError,
    PyslurmError,
    UnsafeError,
)
from slurmsched.backends.slurm.hostlist import expand, fold
from slurmsched.backends.slurm.pyslurm_jobs import PyslurmJobs, load
from slurmsched.backends.slurm.reading import Reader
from slurmsched.backends.slurm.text_jobs import TextJobs
from slurmsched.settings.definition import Cluster

__all__ = [
    "NoConfigurationError",
    "NoSlurmError",
    "NotUnderstoodError",
    "PyslurmError",
    "SlurmBackend",
    "UnsafeError",
    "connect",
    "expand",
    "fold",
]


def connect(cluster: Cluster, clock: Callable[[], float] = time.time) -> Backend:
    """The cluster that the settings name; it is asked for nothing yet, unless pyslurm may be used.

    `auto` takes pyslurm where it is installed and fits, else commands. Raises PyslurmError where pyslurm was demanded
    and does not fit, and BackendError where slurmctld has to be asked for its release then and does not answer.
    """
    commands = Commands(cluster.timeout, cluster.slurm_conf)
    if cluster.backend not in ("auto", "commands", "pyslurm"):
        raise BackendError(f"no backend {cluster.backend!r}: set auto, commands or pyslurm in [cluster]")
    if cluster.backend != "commands":
        try:
            module = load(lambda: Reader(commands, TextJobs(), clock).configuration().release, cluster.slurm_conf)
            return SlurmBackend(commands, PyslurmJobs(module), clock, associations=cluster.associations)
        except BackendError:
            if cluster.backend == "pyslurm":
                raise
    return SlurmBackend(commands, TextJobs(), clock, associations=cluster.associations)
