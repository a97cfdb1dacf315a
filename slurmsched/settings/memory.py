"""The memory limit of the daemon on a cluster of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slurmsched.settings.definition import Settings

_BASE_MIB: Final = 512
"""MiB. The process alone needs about 100."""
_MIB_PER_JOB: Final = 1 / 16
"""MiB. Deciding about a job takes about 3 KiB; the rest is for reading its record from Slurm."""
_MIB_PER_NODE: Final = 1 / 4
"""MiB."""
_PROCESS_FRACTION: Final = 3 / 4
"""Fraction of the limit for the process itself; the rest is for the Slurm commands that it runs. An allocation of the
process then fails, which costs one round, before the kernel kills the service."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """The number of nodes, and of the most jobs that slurmctld keeps (MaxJobCount)."""

    nodes: int
    jobs: int


DEFAULT_CLUSTER_SIZE: Final = ClusterSize(nodes=1000, jobs=10_000)
"""The size assumed if Slurm cannot be asked; 10,000 is Slurm's default of MaxJobCount."""


def daemon_memory(settings: Settings, size: ClusterSize) -> int:
    """Returns MiB for the daemon and the commands it runs: the setting or, if that is 0, by the cluster's size."""
    return settings.daemon.memory_max or int(_BASE_MIB + _MIB_PER_JOB * size.jobs + _MIB_PER_NODE * size.nodes)


def process_memory(settings: Settings, size: ClusterSize) -> int:
    """Returns the MiB of `daemon_memory` that the process itself may use."""
    return int(daemon_memory(settings, size) * _PROCESS_FRACTION)
