"""Clusters as a few words or a file, for experiments.

    v100:4x8                     four nodes of 8 V100, 3 CPUs and 62.5 GiB for each GPU
    v100:4x8:24:500G,k80:2x4     CPUs and memory of a node said; two kinds of nodes

or a TOML file:

    [[nodes]]
    count = 4
    gpus = 8
    gpu_type = "v100"
    cpus = 24
    memory = "500G"
    features = ["fast"]          # optional

or openb's list of nodes (`sn,cpu_milli,memory_mib,gpu,model`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.model import MILLI, Gpu, Node, Resources
from slurmsched.traces.errors import TraceError
from slurmsched.traces.lines import lines, read_text

__all__ = ["PARTITION", "ClusterSpec", "load_cluster"]

PARTITION: Final = "gpu"
"""The partition that all nodes of a described cluster are in."""

MOST_NODES: Final = 100_000
MOST_GPUS: Final = 64
_CPUS_PER_GPU: Final = 3
_MIB_PER_GPU: Final = 64_000
_PART: Final = re.compile(
    r"(?P<type>[A-Za-z0-9_.-]+):(?P<count>\d{1,6})x(?P<gpus>\d{1,3})(?::(?P<cpus>\d{1,5})(?::(?P<memory>\d{1,9}[KMGT]?B?))?)?\Z"
)
_SIZE: Final = re.compile(r"(\d{1,9}) ?([KMGT]?)B?\Z", re.IGNORECASE)
_MIB: Final = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_OPENB: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A described cluster: its nodes, all free and up."""

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    place: str
    gpu_type: str
    count: int
    gpus: int
    cpus: int
    memory: int
    features: tuple[str, ...] = ()


def load_cluster(said: str) -> ClusterSpec:
    """The cluster that a text describes, or a file it names. Raises TraceError."""
    path = Path(said)
    if not _looks_like_a_file(said):
        return _cluster(said, [_kind(part.strip(), said) for part in said.split(",")])
    if path.suffix == ".toml":
        return _cluster(path.stem, list(_kinds(read_text(path), path.name)))
    if path.suffix == ".csv":
        return _openb(read_text(path), path.name)
    raise TraceError(f"{said}: expected a .toml or .csv file, or a text such as v100:4x8:24:500G")


def _looks_like_a_file(said: str) -> bool:
    return said.endswith((".toml", ".csv")) or "/" in said


def _kind(part: str, whole: str) -> _Kind:
    match = _PART.match(part)
    if match is None:
        raise TraceError(f"cluster '{whole}': {part!r}: write TYPE:NODESxGPUS[:CPUS[:MEMORY]], as in v100:4x8:24:500G")
    gpus = int(match["gpus"])
    cpus = int(match["cpus"]) if match["cpus"] else _CPUS_PER_GPU * max(gpus, 1)
    memory = _size(match["memory"]) if match["memory"] else _MIB_PER_GPU * max(gpus, 1)
    return _Kind(f"cluster '{whole}'", match["type"].lower(), int(match["count"]), gpus, cpus, memory or 0)


def _size(text: str) -> int | None:
    """MiB."""
    match = _SIZE.match(text)
    return int(int(match[1]) * _MIB[match[2].upper()]) if match else None


def _kinds(text: str, name: str) -> Iterator[_Kind]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TraceError(f"{name}: {error}") from error
    tables = data.get("nodes")
    if not isinstance(tables, list) or not tables:
        raise TraceError(f"{name}: nodes: expected [[nodes]] tables with count, gpus, gpu_type, cpus and memory")
    for number, table in enumerate(tables, start=1):
        place = f"{name}: nodes {number}"
        if not isinstance(table, dict):
            raise TraceError(f"{place}: expected a table")
        known = {"count", "gpus", "gpu_type", "cpus", "memory", "features"}
        if unknown := sorted(set(table) - known):
            raise TraceError(f"{place}: {unknown[0]}: expected one of {', '.join(sorted(known))} in its place")
        yield _table(table, place)


def _table(table: Mapping[str, object], place: str) -> _Kind:
    def whole(key: str, default: int | None, most: int) -> int:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise TraceError(f"{place}: {key}: expected a whole number up to {most}")
        return value

    gpus, gpu_type, memory = whole("gpus", 0, MOST_GPUS), table.get("gpu_type", ""), table.get("memory")
    if not isinstance(gpu_type, str) or (gpus and not re.fullmatch(r"[A-Za-z0-9_.-]+", gpu_type)):
        raise TraceError(f"{place}: gpu_type: expected a name such as v100")
    size = memory if isinstance(memory, int) and not isinstance(memory, bool) else _size(str(memory or ""))
    if size is None:
        raise TraceError(f"{place}: memory: expected a size such as 500G")
    features = table.get("features", [])
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise TraceError(f"{place}: features: expected a list of names")
    cpus = whole("cpus", None, 100_000)
    return _Kind(place, gpu_type.lower(), whole("count", 1, MOST_NODES), gpus, cpus, size, tuple(features))


def _openb(text: str, name: str) -> ClusterSpec:
    nodes = [
        _node(
            line.text("sn"),
            _Kind(
                line.place,
                line.text("model").lower(),
                1,
                line.whole("gpu"),
                line.whole("cpu_milli", MILLI) // MILLI,
                line.whole("memory_mib"),
            ),
        )
        for line in lines(text, name, _OPENB)
    ]
    if not nodes:
        raise TraceError(f"{name}: there are no nodes in it")
    return ClusterSpec(name, tuple(nodes))


def _cluster(name: str, kinds: list[_Kind]) -> ClusterSpec:
    nodes: list[Node] = []
    made: dict[str, int] = {}
    for kind in kinds:
        if not kind.count or kind.gpus > MOST_GPUS or not kind.cpus or len(nodes) + kind.count > MOST_NODES:
            raise TraceError(f"{kind.place}: expected 1 to {MOST_NODES} nodes, each with CPUs, up to {MOST_GPUS} GPUs")
        stem = kind.gpu_type or "cpu"
        for _ in range(kind.count):
            made[stem] = made.get(stem, 0) + 1
            nodes.append(_node(f"{stem}-{made[stem]}", kind))
    return ClusterSpec(name, tuple(nodes))


def _node(name: str, kind: _Kind) -> Node:
    return Node(
        name=name,
        gpus=tuple(Gpu(index, kind.gpu_type) for index in range(kind.gpus)),
        total=Resources(kind.gpus, kind.cpus, kind.memory),
        used=Resources(),
        features=frozenset({kind.gpu_type, *kind.features} - {""}),
        partitions=frozenset({PARTITION}),
    )
