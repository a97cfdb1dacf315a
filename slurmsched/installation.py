"""One installation: its settings, command and nodes as templates are told of them, and the memory that it may take."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import Final

from slurmsched import __version__
from slurmsched.model import Node, Snapshot
from slurmsched.policies.policies import POLICIES, schedules_shards
from slurmsched.settings import DEFAULT_FILE, LoadedSettings, Settings
from slurmsched.settings.file import settings_tables
from slurmsched.settings.paths import written_folders

_COMMAND: Final = "synsched"
_CRON_PATH: Final = ("/usr/bin", "/bin")

_OWN_FOLDERS: Final = (PurePosixPath("/var/lib/synsched"), PurePosixPath("/run/synsched"))
"""The unit's StateDirectory and RuntimeDirectory, which systemd creates for the daemon to write to."""

_TEMPORARY: Final = (PurePosixPath("/tmp"), PurePosixPath("/var/tmp"))  # noqa: S108 - named, not written to


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


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """Values for the systemd unit: other folders that the daemon writes to, and its memory limit in MiB.

    `private_tmp` is whether it can have a private /tmp: not if a setting names a folder in the shared one.
    """

    folders: tuple[str, ...]
    private_tmp: bool
    memory: int
    size: ClusterSize


@dataclass(frozen=True, slots=True)
class GpuRange:
    """GPUs of one type with consecutive indices, `first` to `last`."""

    type: str
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def span(self) -> str:
        """The indices as Slurm writes them: `[0-7]`, or `0` for a single one."""
        return str(self.first) if self.first == self.last else f"[{self.first}-{self.last}]"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with the same GPUs, shards (per node) and weight.

    `cpus_per_gpu` and `memory_per_gpu` (MiB) are the smallest GPU-proportional share of one GPU among them.
    """

    names: tuple[str, ...]
    devices: tuple[GpuRange, ...]
    shards: int
    weight: int
    cpus_per_gpu: int
    memory_per_gpu: int

    @property
    def gres(self) -> str:
        """The GPUs and shards of a node of the group, as in NodeName's Gres=."""
        gpus = [":".join(filter(None, ("gpu", part.type, str(part.count)))) for part in self.devices]
        return ",".join([*gpus, f"shard:{self.shards}"] if self.shards else gpus)


def node_groups(snapshot: Snapshot) -> tuple[NodeGroup, ...]:
    """Returns the GPU nodes of the cluster in groups of equal nodes, in Slurm's order."""
    groups: dict[tuple[tuple[GpuRange, ...], int, int], list[Node]] = {}
    for node in snapshot.nodes:
        if node.gpus:
            key = (_gpu_ranges(node), sum(gpu.shards for gpu in node.gpus), node.weight)
            groups.setdefault(key, []).append(node)
    return tuple(
        NodeGroup(
            names=tuple(node.name for node in nodes),
            devices=devices,
            shards=shards,
            weight=weight,
            cpus_per_gpu=min(node.proportional_share(1).cpus for node in nodes),
            memory_per_gpu=min(node.proportional_share(1).memory for node in nodes),
        )
        for (devices, shards, weight), nodes in groups.items()
    )


def template_values(
    loaded: LoadedSettings | None = None,
    *,
    snapshot: Snapshot | None = None,
    command: str | None = None,
    user: str = _COMMAND,
    size: ClusterSize = DEFAULT_CLUSTER_SIZE,
) -> dict[str, object]:
    """Returns the values that the shipped templates need, for `render`.

    `node_groups`, which the templates of Slurm's configuration files need, requires a snapshot. `size` determines the
    memory limit in the systemd unit.
    """
    loaded = loaded or LoadedSettings(Settings())
    values: dict[str, object] = {
        "version": __version__,
        "settings": loaded.settings,
        "tables": settings_tables(loaded),
        "policies": POLICIES,
        "parts": schedules_shards(loaded.settings.policy.system, loaded.settings.policy.parts),
        "file": loaded.file or DEFAULT_FILE,
        "command": command or _command_path(),
        "user": user,
        "unit": _unit(loaded.settings, size),
        "systemd_word": systemd_word,
        "uids": _uids(user),
        "slurm_commands": _slurm_commands(),
    }
    if snapshot is not None:
        values["node_groups"] = node_groups(snapshot)
    return values


def systemd_word(text: str | PurePosixPath) -> str:
    """Returns the text as one word of a unit file, quoted if necessary, with percent signs escaped."""
    word = str(text).replace("%", "%%")
    if not set(word) & set(" \t\"'\\;"):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def extra_write_folders(settings: Settings) -> tuple[str, ...]:
    """Returns the folders that the daemon writes to and that the unit does not create."""
    return tuple(folder for folder in written_folders(settings) if not _within(folder, _OWN_FOLDERS))


def _unit(settings: Settings, size: ClusterSize) -> SystemdUnit:
    folders = extra_write_folders(settings)
    private_tmp = not any(_within(folder, _TEMPORARY) for folder in folders)
    return SystemdUnit(folders, private_tmp, daemon_memory(settings, size), size)


def _within(folder: str, bases: tuple[PurePosixPath, ...]) -> bool:
    return any(PurePosixPath(folder).is_relative_to(base) for base in bases)


def _gpu_ranges(node: Node) -> tuple[GpuRange, ...]:
    """Returns the node's GPUs as ranges: within one, the index minus the position is constant."""
    by_index = sorted(node.gpus, key=lambda gpu: gpu.index)
    groups = groupby(enumerate(by_index), key=lambda item: (item[1].type, item[1].index - item[0]))
    ranges = []
    for (gpu_type, _), members in groups:
        indices = [gpu.index for _, gpu in members]
        ranges.append(GpuRange(gpu_type, indices[0], indices[-1]))
    return tuple(ranges)


def _uids(user: str) -> tuple[int, ...]:
    """Returns the uid of the user; empty if this machine does not know the user."""
    try:
        return (pwd.getpwnam(user).pw_uid,)
    except KeyError:
        return ()


def _slurm_commands() -> str:
    """Returns the folder of Slurm's commands if it is not on cron's PATH; empty otherwise."""
    scontrol = shutil.which("scontrol")
    folder = os.path.dirname(os.path.abspath(scontrol)) if scontrol else ""  # noqa: PTH100, PTH120 - keep links
    return "" if folder in _CRON_PATH else folder


def _command_path() -> str:
    """Returns the absolute path of the running command, else of the one on PATH, for units and cron lines."""
    program = sys.argv[0]
    if os.path.basename(program) == _COMMAND and os.path.exists(program):  # noqa: PTH119, PTH110 - argv is text
        return os.path.abspath(program)  # noqa: PTH100
    return shutil.which(_COMMAND) or f"/usr/bin/{_COMMAND}"
