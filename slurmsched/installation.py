"""What the templates are told about one installation: its settings, its command, its nodes."""

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
from slurmsched.settings.definition import written_folders
from slurmsched.settings.file import settings_tables
from slurmsched.settings.memory import DEFAULT_CLUSTER_SIZE, ClusterSize, daemon_memory

_COMMAND: Final = "synsched"
_CRON_PATH: Final = ("/usr/bin", "/bin")

_OWN_FOLDERS: Final = (PurePosixPath("/var/lib/synsched"), PurePosixPath("/run/synsched"))
"""The unit's StateDirectory and RuntimeDirectory, which systemd makes and lets it write to."""

_TEMPORARY: Final = (PurePosixPath("/tmp"), PurePosixPath("/var/tmp"))  # noqa: S108 - named, not written to


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """What the systemd unit is told: folders the daemon writes to outside its own, and MiB of memory.

    `private_tmp` is whether it can have a /tmp of its own: not where a setting names a folder in the common one.
    """

    folders: tuple[str, ...]
    private_tmp: bool
    memory: int
    size: ClusterSize


@dataclass(frozen=True, slots=True)
class GpuRange:
    """GPUs of one type with neighbouring indices, `first` to `last`."""

    type: str
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def span(self) -> str:
        """As Slurm writes a range of numbers: `[0-7]`, or `0` for one."""
        return str(self.first) if self.first == self.last else f"[{self.first}-{self.last}]"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike in devices, shards (per node) and weight.

    `cpus_per_gpu` and `memory_per_gpu` (MiB) are the GPU-proportional share of the smallest of them.
    """

    names: tuple[str, ...]
    devices: tuple[GpuRange, ...]
    shards: int
    weight: int
    cpus_per_gpu: int
    memory_per_gpu: int

    @property
    def gres(self) -> str:
        """What a node of the group has, as NodeName's Gres= says it."""
        gpus = [":".join(filter(None, ("gpu", part.type, str(part.count)))) for part in self.devices]
        return ",".join([*gpus, f"shard:{self.shards}"] if self.shards else gpus)


def node_groups(snapshot: Snapshot) -> tuple[NodeGroup, ...]:
    """The cluster's GPU nodes, alike ones together, in the order in which Slurm names them."""
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
    """The values for `render`: every shipped template is content with these.

    Only with a snapshot are there `node_groups`; the templates of Slurm's own files need them. `size` is the cluster's,
    for the memory in the systemd unit.
    """
    loaded = loaded or LoadedSettings(Settings())
    values: dict[str, object] = {
        "version": __version__,
        "settings": loaded.settings,
        "tables": settings_tables(loaded),
        "policies": POLICIES,
        "parts": schedules_shards(loaded.settings.policy.system),
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
    """One word of a unit file, quoted where it has to be; a percent sign stands for itself."""
    word = str(text).replace("%", "%%")
    if not set(word) & set(" \t\"'\\;"):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def extra_write_folders(settings: Settings) -> tuple[str, ...]:
    """Folders that the daemon writes to and that the unit does not make for it."""
    return tuple(folder for folder in written_folders(settings) if not _within(folder, _OWN_FOLDERS))


def _unit(settings: Settings, size: ClusterSize) -> SystemdUnit:
    folders = extra_write_folders(settings)
    private_tmp = not any(_within(folder, _TEMPORARY) for folder in folders)
    return SystemdUnit(folders, private_tmp, daemon_memory(settings, size), size)


def _within(folder: str, bases: tuple[PurePosixPath, ...]) -> bool:
    return any(PurePosixPath(folder).is_relative_to(base) for base in bases)


def _gpu_ranges(node: Node) -> tuple[GpuRange, ...]:
    """The node's GPUs as stretches: the index less the position is the same all along one stretch."""
    by_index = sorted(node.gpus, key=lambda gpu: gpu.index)
    stretches = groupby(enumerate(by_index), key=lambda at: (at[1].type, at[1].index - at[0]))
    ranges = []
    for (kind, _), members in stretches:
        indices = [gpu.index for _, gpu in members]
        ranges.append(GpuRange(kind, indices[0], indices[-1]))
    return tuple(ranges)


def _uids(user: str) -> tuple[int, ...]:
    """The user's number; none where the machine does not know him."""
    try:
        return (pwd.getpwnam(user).pw_uid,)
    except KeyError:
        return ()


def _slurm_commands() -> str:
    """The folder of Slurm's commands where cron would not find them; empty otherwise."""
    scontrol = shutil.which("scontrol")
    folder = os.path.dirname(os.path.abspath(scontrol)) if scontrol else ""  # noqa: PTH100, PTH120 - links stay links
    return "" if folder in _CRON_PATH else folder


def _command_path() -> str:
    """The absolute path of the command that runs, or of the one on PATH; units and cron lines need one."""
    program = sys.argv[0]
    if os.path.basename(program) == _COMMAND and os.path.exists(program):  # noqa: PTH119, PTH110 - argv is text
        return os.path.abspath(program)  # noqa: PTH100
    return shutil.which(_COMMAND) or f"/usr/bin/{_COMMAND}"
