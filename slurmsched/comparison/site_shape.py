"""The nodes of a site: from what `scontrol show node` or `sinfo` printed, a description, or its accounting."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Final

from slurmsched.backends.slurm.cluster import parse_node
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import parse_gpus
from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.model import Gpu, Node, NodeState, Resources
from slurmsched.model.reasons import pluralise
from slurmsched.traces.accounting import AccountedJob
from slurmsched.traces.clusters import MAX_GPUS_PER_NODE, MAX_NODES, SPEC_PARTITION, load_cluster
from slurmsched.traces.tables import read_text
from slurmsched.traces.trace import TraceError

SINFO_COMMAND: Final = "sinfo -h -N -o '%N|%c|%m|%G|%f'"
"""What prints the nodes in a form that is read, beside `scontrol show node`."""

_SINFO_COLUMNS: Final = 4
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
"""GPUs that nodes have."""
_TOO_MANY: Final = MAX_GPUS_PER_NODE + 1
_MOST_DIGITS: Final = 4
_GRES_COUNT: Final = re.compile(r"\bGres=\S*?gpu:(?:[^\s:,(]+:)?(\d+)")
_ENOUGH_CPUS: Final = 4096
_ENOUGH_MIB: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SiteShape:
    """The nodes with GPUs, all free and up, and where they come from in words; `notes` are what was taken for
    granted."""

    nodes: tuple[Node, ...]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)


def read_shape(given: str) -> SiteShape:
    """Returns the shape that a description says, or a file with one or with what Slurm printed. Raises TraceError."""
    path = Path(given)
    if not path.exists() or path.is_dir() or path.suffix in (".toml", ".csv"):  # a pipe is read: <(scontrol show node)
        spec = load_cluster(given)
        return SiteShape(spec.nodes, f"{spec.name}, as described")
    text = read_text(path)
    if "NodeName=" in text:
        return _shape_of(_scontrol_nodes(text, path.name), f"scontrol's nodes in {path.name}", path.name)
    return _shape_of(_sinfo_nodes(text, path.name), f"sinfo's nodes in {path.name}", path.name)


def shape_of_nodes(nodes: Sequence[Node], source: str) -> SiteShape:
    """Returns the shape of nodes as a poll shows them. Raises TraceError if none has a GPU."""
    return _shape_of(nodes, source, source)


def _scontrol_nodes(text: str, name: str) -> Iterator[Node]:
    for record in re.split(r"(?m)^(?=NodeName=)", text):
        if record.startswith("NodeName="):
            if any(len(count) > _MOST_DIGITS for count in _GRES_COUNT.findall(record)):
                raise TraceError(f"{name}: {record.split()[0][:40]}: expected up to {MAX_GPUS_PER_NODE} GPUs")
            try:
                yield parse_node(" ".join(record.split()))
            except (SlurmParseError, ValueError) as error:
                raise TraceError(f"{name}: {record.split()[0][:40]}: {error}") from error


def _sinfo_nodes(text: str, name: str) -> Iterator[Node]:
    seen = set[str]()
    for number, line in enumerate(text.split("\n"), 1):
        fields = [field.strip() for field in line.split("|")]
        if not line.strip() or fields[0].upper() == "NODELIST":
            continue
        if len(fields) < _SINFO_COLUMNS:
            raise TraceError(f"{name}:{number}: expected what '{SINFO_COMMAND}' or 'scontrol show node' prints")
        try:
            cpus, memory = (int(field.rstrip("+")) for field in fields[1:3])
            kinds = [entry.type for entry in parse_gpus(fields[3]) for _ in range(min(entry.count, _TOO_MANY))]
            names = expand_hostlist(fields[0])
        except (SlurmParseError, ValueError) as error:
            raise TraceError(f"{name}:{number}: expected NODES|CPUS|MEMORY|GRES: {error}") from error
        features = frozenset(filter(None, (fields[4] if len(fields) > _SINFO_COLUMNS else "").split(",")))
        for node in names:
            if node not in seen:  # a node of two partitions stands there twice
                seen.add(node)
                gpus = tuple(Gpu(index, kind) for index, kind in enumerate(kinds))
                yield Node(node, gpus, Resources(len(gpus), cpus, memory), Resources(), features=features - {"(null)"})


def _shape_of(found: Iterable[Node], source: str, name: str) -> SiteShape:
    nodes, down = list[Node](), 0
    for node in found:
        if not node.gpus:
            continue
        if len(node.gpus) > MAX_GPUS_PER_NODE or len(nodes) >= MAX_NODES:
            raise TraceError(f"{name}: expected up to {MAX_NODES} nodes with up to {MAX_GPUS_PER_NODE} GPUs each")
        down += node.state is not NodeState.UP
        gpus = tuple(Gpu(index, gpu.type.lower()) for index, gpu in enumerate(node.gpus))
        total = replace(node.total, gpus=len(gpus), cpus=max(node.total.cpus, 1))
        partitions = frozenset({SPEC_PARTITION})
        nodes.append(Node(node.name, gpus, total, Resources(), features=node.features, partitions=partitions))
    if not nodes:
        raise TraceError(f"{name}: none of its nodes has a GPU (Gres=gpu:TYPE:COUNT)")
    notes = (f"{pluralise(down, 'node')} that Slurm shows as down or drained count as up",) if down else ()
    return SiteShape(tuple(nodes), f"{source}, {_in_words(nodes)}", notes)


def derive_shape(jobs: Sequence[AccountedJob]) -> SiteShape:
    """Returns the least nodes that had the GPUs that jobs held at once, by the GPU type that they ran on.

    GPUs of a node are as many as a job had on one, and a power of two. CPUs and memory are taken as enough.
    """
    per_node, held = defaultdict[str, int](int), defaultdict[str, list[tuple[float, int]]](list)
    for job in jobs:
        kind, asked = job.ran_on or "gpu", job.job.gpus
        per_node[kind] = max(per_node[kind], min(job.job.gpus_per_node or 1, MAX_GPUS_PER_NODE))
        end = job.start + job.job.duration if job.end is None or job.runs > 1 else job.end
        held[kind] += ((job.start, asked), (end, -asked))
    nodes, shape = list[Node](), list[str]()
    for kind in sorted(held):
        size = next(size for size in _SIZES if size >= per_node[kind])
        size = max(size, min(8, 2 ** (_most_at_once(held[kind]).bit_length() - 1)))
        count = min(ceil(_most_at_once(held[kind]) / size), MAX_NODES)
        gpus = tuple(Gpu(index, kind) for index in range(size))
        total, partitions = Resources(size, _ENOUGH_CPUS, _ENOUGH_MIB), frozenset({SPEC_PARTITION})
        nodes += (
            Node(f"{kind}-{number}", gpus, total, Resources(), features=frozenset({kind}), partitions=partitions)
            for number in range(1, count + 1)
        )
        shape.append(f"{kind}:{count}x{size}")
    guess = (
        f"the cluster is a guess: as many GPUs as jobs held at once, {','.join(shape)}, with CPUs and memory enough;"
        " give the real one with --cluster (a file of 'scontrol show node')"
    )
    return SiteShape(tuple(nodes), f"derived from the jobs, {_in_words(nodes)}", (guess,))


def _most_at_once(changes: Iterable[tuple[float, int]]) -> int:
    most = now = 0
    for _, gpus in sorted(changes):  # at the same time ends, which are negative, come first
        now += gpus
        most = max(most, now)
    return most


def most_gpus_held(jobs: Iterable[AccountedJob]) -> int:
    """Returns how many GPUs the jobs held at once at most, by the accounting."""
    return _most_at_once(
        change
        for job in jobs
        if job.runs == 1
        for change in ((job.start, job.job.gpus), (job.end or job.start + job.job.duration, -job.job.gpus))
    )


def _in_words(nodes: Sequence[Node]) -> str:
    kinds = Counter(gpu.type or "untyped" for node in nodes for gpu in node.gpus)
    gpus = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))
    return f"{pluralise(len(nodes), 'node')} with {pluralise(kinds.total(), 'GPU')} ({gpus})"
