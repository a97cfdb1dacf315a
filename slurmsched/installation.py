"""What the templates are told about one installation: its settings, its command, its nodes."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from slurmsched import __version__
from slurmsched.model import Node, Snapshot
from slurmsched.settings import DEFAULT_FILE, Loaded, Settings
from slurmsched.settings.showing import tables

__all__ = ["Devices", "NodeGroup", "installation", "node_groups"]

_COMMAND: Final = "synsched"
_PATH_OF_CRON: Final = ("/usr/bin", "/bin")


@dataclass(frozen=True, slots=True)
class Devices:
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
    devices: tuple[Devices, ...]
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
    groups: dict[tuple[tuple[Devices, ...], int, int], list[Node]] = {}
    for node in snapshot.nodes:
        if node.gpus:
            key = (_devices(node), sum(gpu.shards for gpu in node.gpus), node.weight)
            groups.setdefault(key, []).append(node)
    return tuple(
        NodeGroup(
            names=tuple(node.name for node in nodes),
            devices=devices,
            shards=shards,
            weight=weight,
            cpus_per_gpu=min(node.proportional(1).cpus for node in nodes),
            memory_per_gpu=min(node.proportional(1).memory for node in nodes),
        )
        for (devices, shards, weight), nodes in groups.items()
    )


def installation(
    loaded: Loaded | None = None, *, snapshot: Snapshot | None = None, command: str | None = None, user: str = _COMMAND
) -> dict[str, object]:
    """The values for `render`: every shipped template is content with these.

    Only with a snapshot are there `node_groups`; the templates of Slurm's own files need them.
    """
    loaded = loaded or Loaded(Settings())
    values: dict[str, object] = {
        "version": __version__,
        "settings": loaded.settings,
        "tables": tables(loaded),
        "file": loaded.file or DEFAULT_FILE,
        "command": command or _own_command(),
        "user": user,
        "uids": _uids(user),
        "slurm_commands": _slurm_commands(),
    }
    if snapshot is not None:
        values["node_groups"] = node_groups(snapshot)
    return values


def _devices(node: Node) -> tuple[Devices, ...]:
    """The node's GPUs as stretches: the index less the position is the same all along one stretch."""
    by_index = sorted(node.gpus, key=lambda gpu: gpu.index)
    stretches = groupby(enumerate(by_index), key=lambda at: (at[1].type, at[1].index - at[0]))
    found = []
    for (kind, _), members in stretches:
        indices = [gpu.index for _, gpu in members]
        found.append(Devices(kind, indices[0], indices[-1]))
    return tuple(found)


def _uids(user: str) -> tuple[int, ...]:
    """The user's number; none where the machine does not know him."""
    try:
        return (pwd.getpwnam(user).pw_uid,)
    except KeyError:
        return ()


def _slurm_commands() -> str:
    """The folder of Slurm's commands where cron would not find them; empty otherwise."""
    found = shutil.which("scontrol")
    folder = os.path.dirname(os.path.abspath(found)) if found else ""  # noqa: PTH100, PTH120 - links stay links
    return "" if folder in _PATH_OF_CRON else folder


def _own_command() -> str:
    """The absolute path of the command that runs, or of the one on PATH; units and cron lines need one."""
    own = sys.argv[0]
    if os.path.basename(own) == _COMMAND and os.path.exists(own):  # noqa: PTH119, PTH110 - argv is text
        return os.path.abspath(own)  # noqa: PTH100
    return shutil.which(_COMMAND) or f"/usr/bin/{_COMMAND}"
