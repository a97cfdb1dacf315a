"""How much memory the daemon may take on a cluster of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slurmsched.settings.definition import Settings

_BASE_MIB: Final = 512
"""MiB. The process alone takes about 100."""
_MIB_PER_JOB: Final = 1 / 16
"""MiB. Deciding on a job takes about 3 KiB; the rest is for its record on the way from Slurm."""
_MIB_PER_NODE: Final = 1 / 4
"""MiB."""
_PROCESS_FRACTION: Final = 3 / 4
"""Part of the whole that the process itself may take. Slurm's commands, which run beside it, have the rest; and an
allocation of ours fails, which costs one round, before the kernel has to end the service."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """How many nodes there are, and how many jobs slurmctld keeps at most (MaxJobCount)."""

    nodes: int
    jobs: int


DEFAULT_CLUSTER_SIZE: Final = ClusterSize(nodes=1000, jobs=10_000)
"""What is assumed where Slurm cannot be asked; 10,000 is Slurm's own default of MaxJobCount."""


def daemon_memory(settings: Settings, size: ClusterSize) -> int:
    """MiB for the daemon and the commands it runs: the setting, or by the cluster's size where that is 0."""
    return settings.daemon.memory_max or int(_BASE_MIB + _MIB_PER_JOB * size.jobs + _MIB_PER_NODE * size.nodes)


def process_memory(settings: Settings, size: ClusterSize) -> int:
    """MiB of it for the process itself."""
    return int(daemon_memory(settings, size) * _PROCESS_FRACTION)
