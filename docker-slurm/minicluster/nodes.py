"""Parses `--nodes`: groups of equal nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .commands import ClusterError

DEFAULT_SPEC = "v100:2x8,p100:1x8,k80:2x8"
SHARDS_PER_GPU = 10

_GROUP = re.compile(
    r"(?P<type>[a-z][a-z0-9]*):(?P<count>\d+)x(?P<gpus>\d+)(?:/(?P<cpus>\d+)c)?(?:/(?P<threads>\d+)t)?(?:/(?P<memory>\d+)g)?"
)


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes, named TYPE-1, TYPE-2, ...; `gpus`, `cpus` and `memory` (GiB) per node, `threads` CPUs per core."""

    type: str
    count: int
    gpus: int
    cpus: int = 24
    memory: int = 500
    threads: int = 1

    @property
    def names(self) -> list[str]:
        """The names of this group's nodes."""
        return [f"{self.type}-{index}" for index in range(1, self.count + 1)]

    @property
    def hostlist(self) -> str:
        """The names as a Slurm hostlist."""
        return f"{self.type}-[1-{self.count}]" if self.count > 1 else f"{self.type}-1"

    @property
    def memory_mb(self) -> int:
        """Memory per node in MiB."""
        return self.memory * 1024


def parse_nodes(spec: str) -> tuple[NodeGroup, ...]:
    """Parses `TYPE:COUNTxGPUS[/CPUSc][/THREADSt][/MEMORYg],...`. Raises ClusterError.

    >>> parse_nodes("v100:2x8,cpu:1x0/4c/16g")[1]
    NodeGroup(type='cpu', count=1, gpus=0, cpus=4, memory=16, threads=1)
    """
    groups = []
    for part in spec.split(","):
        match = _GROUP.fullmatch(part.strip())
        if not match:
            raise ClusterError(
                f"node group '{part}' is not TYPE:COUNTxGPUS[/CPUSc][/THREADSt][/MEMORYg], e.g. v100:2x8/24c/500g"
            )
        sizes = {key: int(value) for key, value in match.groupdict().items() if key != "type" and value}
        if not all(sizes.get(key, 1) for key in ("count", "cpus", "memory", "threads")):
            raise ClusterError(f"node group '{part}' is empty: COUNT, CPUS, THREADS and MEMORY must be at least 1")
        if sizes.get("cpus", 24) % sizes.get("threads", 1):
            raise ClusterError(
                f"node group '{part}' has a number of CPUs that is no multiple of {sizes['threads']} threads per core"
            )
        groups.append(NodeGroup(match["type"], **sizes))
    types = [group.type for group in groups]
    if len(set(types)) < len(types):
        raise ClusterError(f"each type may appear once in --nodes, not: {', '.join(types)}")
    reserved = {"db", "dbd", "ctl", "login"} & set(types)
    if reserved:
        raise ClusterError(f"'{reserved.pop()}' is the name of a service and cannot be a node type")
    return tuple(groups)
