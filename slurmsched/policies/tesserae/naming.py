"""Renaming in a live round: on Slurm the names are nodes (Tesserae, section 4.1).

A job that keeps its lease stays where it is, so only nodes that all their jobs leave, or start anew on, can change
names; of those, only such as are alike in everything a job may ask of a node, and not those a job was sent to, or kept
from, by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace

import numpy as np

from slurmsched.model import Job, JobId, Node, Resources
from slurmsched.policies.draft import Draft
from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae.layout import Layout
from slurmsched.policies.tesserae.migration import renamed

__all__ = ["rename_nodes"]


def rename_nodes(draft: Draft) -> None:
    """Exchange nodes between the placements of the draft so that the fewest of the jobs that run move."""
    number = {job: place for place, job in enumerate(draft.placed)}
    if draft.victims.keys().isdisjoint(number):
        return
    before, after = _layout(_had(draft, number)), _layout(_shall_have(draft, number))
    names = renamed(before, after, _alike(draft)).names
    if (names == np.arange(len(names))).all():
        return
    for job, placement in draft.placed.items():
        at = tuple(_pool(draft, pool, names) for pool in placement.pools)
        for ledger in (draft.tight, draft.wide):
            ledger.refund(placement.claim(draft.pools))
        draft.placed[job] = replace(placement, pools=at)
        for ledger in (draft.tight, draft.wide):
            ledger.claim(draft.placed[job].claim(draft.pools))


_Row = tuple[int, int, int]
"""Node, GPUs and the job's number."""


def _had(draft: Draft, number: dict[JobId, int]) -> Iterator[_Row]:
    for victim in draft.victims.keys() & number.keys():
        claim = draft.pools.claim(draft.jobs[victim].shares)
        for pool, gpus in zip(claim.pools, claim.gpus, strict=True):
            yield int(draft.pools.node_of[pool]), gpus, number[victim]


def _shall_have(draft: Draft, number: dict[JobId, int]) -> Iterator[_Row]:
    for job, placement in draft.placed.items():
        for pool, parts in zip(placement.pools, placement.parts, strict=True):
            yield int(draft.pools.node_of[pool]), parts * placement.gang.gpus, number[job]


def _layout(rows: Iterator[_Row]) -> Layout:
    return Layout.of((node, gpus, (job,)) for node, gpus, job in rows)


def _pool(draft: Draft, pool: int, names: Ints) -> int:
    """The pool of the same GPU type on the node's new name."""
    node = int(draft.pools.node_of[pool])
    first, there = (int(np.flatnonzero(draft.pools.node_of == n)[0]) for n in (node, names[node]))
    return pool - first + there


def _alike(draft: Draft) -> Ints:
    """A number for each node, the same for nodes that may change names; fixed ones have one of their own."""
    nodes, fixed = draft.pools.nodes, _fixed(draft)
    numbers: dict[Hashable, int] = {}
    keys: list[Hashable] = [node.name if node.name in fixed else _kind(draft, node) for node in nodes]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _kind(draft: Draft, node: Node) -> Hashable:
    """Everything by which a job may have been placed on it."""
    usable = frozenset(partition for partition, names in draft.situation.usable.items() if node.name in names)
    gpus = tuple((gpu.type, gpu.shards) for gpu in node.gpus)
    return gpus, node.total, node.state, node.features, node.partitions, node.reservation, node.weight, usable


def _fixed(draft: Draft) -> set[str]:
    """Nodes on which something stays, or that a job that is placed there has named."""
    left = {node.name: Resources() for node in draft.pools.nodes}
    for victim in draft.victims:
        for share in draft.jobs[victim].shares:
            left[share.node] = left.get(share.node, Resources()) + share.resources
    staying = {node.name for node in draft.pools.nodes if node.used != left[node.name]}
    named = {
        draft.pools.node(pool).name
        for job, placement in draft.placed.items()
        if _particular(draft.jobs[job])
        for pool in placement.pools
    }
    return staying | named | {node for job in draft.jobs.values() for node in job.request.pinned}


def _particular(job: Job) -> bool:
    return bool(job.request.pinned or job.request.excluded)
