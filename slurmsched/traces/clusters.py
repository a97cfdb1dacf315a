"""Parses descriptions of clusters for experiments, from a short text or a file.

    v100:4x8                     four nodes of 8 V100, 3 CPUs and 62.5 GiB for each GPU
    v100:4x8:24:500G,k80:2x4     with CPUs and memory of a node; two kinds of nodes

or a TOML file:

    [[nodes]]
    count = 4
    gpus = 8
    gpu_type = "v100"
    cpus = 24
    memory = "500G"
    features = ["fast"]          # optional

or a CSV list of nodes as in the openb trace (`sn,cpu_milli,memory_mib,gpu,model`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.model import MILLI_PER_GPU, Gpu, Node, Resources
from slurmsched.traces.tables import csv_rows, read_text
from slurmsched.traces.trace import TraceError

SPEC_PARTITION: Final = "gpu"
"""The partition of all nodes of a described cluster."""

MAX_NODES: Final = 100_000
MAX_GPUS_PER_NODE: Final = 64
_CPUS_PER_GPU: Final = 3
_MIB_PER_GPU: Final = 64_000
_GROUP_TEXT: Final = re.compile(
    r"(?P<type>[A-Za-z0-9_.-]+):(?P<count>\d{1,6})x(?P<gpus>\d{1,3})(?::(?P<cpus>\d{1,5})(?::(?P<memory>\d{1,9}[KMGT]?B?))?)?\Z"
)
_SIZE: Final = re.compile(r"(\d{1,9}) ?([KMGT]?)B?\Z", re.IGNORECASE)
_MIB: Final = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_OPENB: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A described cluster; all nodes are up and free."""

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _NodeGroup:
    location: str
    gpu_type: str
    count: int
    gpus: int
    cpus: int
    memory: int
    features: tuple[str, ...] = ()


def load_cluster(spec: str) -> ClusterSpec:
    """Returns the cluster that a text describes, or the file that it names. Raises TraceError."""
    path = Path(spec)
    if not _looks_like_a_file(spec):
        return _cluster_from_groups(spec, [_group_from_text(part.strip(), spec) for part in spec.split(",")])
    if path.suffix == ".toml":
        return _cluster_from_groups(path.stem, list(_groups_from_toml(read_text(path), path.name)))
    if path.suffix == ".csv":
        return _cluster_from_openb(read_text(path), path.name)
    raise TraceError(f"{spec}: expected a .toml or .csv file, or a text such as v100:4x8:24:500G")


def _looks_like_a_file(spec: str) -> bool:
    return spec.endswith((".toml", ".csv")) or "/" in spec


def _group_from_text(part: str, whole: str) -> _NodeGroup:
    match = _GROUP_TEXT.match(part)
    if match is None:
        raise TraceError(f"cluster '{whole}': {part!r}: write TYPE:NODESxGPUS[:CPUS[:MEMORY]], as in v100:4x8:24:500G")
    gpus = int(match["gpus"])
    cpus = int(match["cpus"]) if match["cpus"] else _CPUS_PER_GPU * max(gpus, 1)
    memory = _parse_mib(match["memory"]) if match["memory"] else _MIB_PER_GPU * max(gpus, 1)
    return _NodeGroup(f"cluster '{whole}'", match["type"].lower(), int(match["count"]), gpus, cpus, memory or 0)


def _parse_mib(text: str) -> int | None:
    """Returns a size such as `500G` in MiB; None for any other text."""
    match = _SIZE.match(text)
    return int(int(match[1]) * _MIB[match[2].upper()]) if match else None


def _groups_from_toml(text: str, name: str) -> Iterator[_NodeGroup]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TraceError(f"{name}: {error}") from error
    tables = data.get("nodes")
    if not isinstance(tables, list) or not tables:
        raise TraceError(f"{name}: nodes: expected [[nodes]] tables with count, gpus, gpu_type, cpus and memory")
    for number, table in enumerate(tables, start=1):
        location = f"{name}: nodes {number}"
        if not isinstance(table, dict):
            raise TraceError(f"{location}: expected a table")
        known = {"count", "gpus", "gpu_type", "cpus", "memory", "features"}
        if unknown := sorted(set(table) - known):
            raise TraceError(f"{location}: {unknown[0]}: expected one of {', '.join(sorted(known))} instead")
        yield _group_from_table(table, location)


def _group_from_table(table: Mapping[str, object], location: str) -> _NodeGroup:
    def whole(key: str, default: int | None, most: int) -> int:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise TraceError(f"{location}: {key}: expected a whole number from 0 to {most}")
        return value

    gpus, gpu_type, memory = whole("gpus", 0, MAX_GPUS_PER_NODE), table.get("gpu_type", ""), table.get("memory")
    if not isinstance(gpu_type, str) or (gpus and not re.fullmatch(r"[A-Za-z0-9_.-]+", gpu_type)):
        raise TraceError(f"{location}: gpu_type: expected a name such as v100")
    size = memory if isinstance(memory, int) and not isinstance(memory, bool) else _parse_mib(str(memory or ""))
    if size is None:
        raise TraceError(f"{location}: memory: expected a size such as 500G")
    features = table.get("features", [])
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise TraceError(f"{location}: features: expected a list of names")
    cpus = whole("cpus", None, 100_000)
    return _NodeGroup(location, gpu_type.lower(), whole("count", 1, MAX_NODES), gpus, cpus, size, tuple(features))


def _cluster_from_openb(text: str, name: str) -> ClusterSpec:
    nodes = [
        _node(
            line.text("sn"),
            _NodeGroup(
                line.location,
                line.text("model").lower(),
                1,
                line.integer("gpu"),
                line.integer("cpu_milli", MILLI_PER_GPU) // MILLI_PER_GPU,
                line.integer("memory_mib"),
            ),
        )
        for line in csv_rows(text, name, _OPENB)
    ]
    if not nodes:
        raise TraceError(f"{name}: expected at least one node")
    return ClusterSpec(name, tuple(nodes))


def _cluster_from_groups(name: str, groups: list[_NodeGroup]) -> ClusterSpec:
    nodes: list[Node] = []
    counts: dict[str, int] = {}
    for group in groups:
        if not group.count or group.gpus > MAX_GPUS_PER_NODE or not group.cpus or len(nodes) + group.count > MAX_NODES:
            raise TraceError(
                f"{group.location}: expected 1 to {MAX_NODES} nodes, each with CPUs, up to {MAX_GPUS_PER_NODE} GPUs"
            )
        stem = group.gpu_type or "cpu"
        for _ in range(group.count):
            counts[stem] = counts.get(stem, 0) + 1
            nodes.append(_node(f"{stem}-{counts[stem]}", group))
    return ClusterSpec(name, tuple(nodes))


def _node(name: str, group: _NodeGroup) -> Node:
    return Node(
        name=name,
        gpus=tuple(Gpu(index, group.gpu_type) for index in range(group.gpus)),
        total=Resources(group.gpus, group.cpus, group.memory),
        used=Resources(),
        features=frozenset({group.gpu_type, *group.features} - {""}),
        partitions=frozenset({SPEC_PARTITION}),
    )
