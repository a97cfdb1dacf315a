"""How many shards of each device are taken, where Slurm does not say it at the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from slurmsched.model import MILLI, Gpu, Job, JobState, Node

__all__ = ["counted_by_job"]


def counted_by_job(nodes: Iterable[Node], jobs: Iterable[Job]) -> Iterator[Node]:
    """The nodes, with the shards that jobs have on each device. Slurm 22.05 names only the devices at a node and the
    sum of all their shards; where the jobs that are seen have another sum, some are hidden, and nothing is changed."""
    taken = Counter[tuple[str, int]]()
    for job in (job for job in jobs if job.state is not JobState.FINISHED):
        for share in (share for share in job.shares if share.shards and len(share.indices) == 1):
            taken[share.node, share.indices[0]] += share.shards
    names = {name for name, _ in taken}
    for node in nodes:
        yield _counted(node, taken) if node.name in names else node


def _counted(node: Node, taken: Counter[tuple[str, int]]) -> Node:
    cut = {gpu.index: replace(gpu, used=_part(gpu, taken[node.name, gpu.index])) for gpu in node.gpus if gpu.shards}
    cut = {index: gpu for index, gpu in cut.items() if gpu.used}
    off = sum(gpu.used for gpu in cut.values()) - sum(node.gpus[index].used for index in cut)
    if abs(off) >= max(len(cut), 1):  # each device's part is rounded down
        return node
    return replace(node, gpus=tuple(cut.get(gpu.index, gpu) for gpu in node.gpus))


def _part(gpu: Gpu, shards: int) -> int:
    return min(MILLI, MILLI * shards // gpu.shards)
