"""A node of slurm.conf that never exists, with which an update keeps slurmctld from testing a job on all other nodes.

slurmctld tests a job that names all its nodes (`ReqNodeList`) on every node of its partition all the same: 80 ms of its
processor time on 12,500 nodes, for each start. Where a job names more nodes than it asks for, it takes the others as
excluded instead (`_update_job` and `_sync_detail_bitmaps` of Slurm 23.02 to 26.05), and a start takes 3 ms. So a start
names the planned nodes and this one, on which nothing can start:

    NodeName=synsched-never State=FUTURE

What such an update asks for is undone like every other pin: `ReqNodeList` is all that it changes. The node has to be in
the job's partitions, where `Nodes=ALL` has it, since slurmctld refuses the update otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from slurmsched.model import Node, NodeState, Partition, release_number

PLACEHOLDER: Final = "synsched-never"
"""The node's name. It is never shown: a job that names it is `narrowed`."""
NARROWING_SINCE: Final = (23, 2)
"""The first release that excludes what is not named; earlier ones want all named nodes."""


def narrowing_partitions(partitions: Iterable[Partition], nodes: Iterable[Node], release: str) -> frozenset[str]:
    """The partitions whose jobs may name the placeholder: those that have it, unless Slurm is too old or the
    placeholder is a node that works."""
    number = release_number(release)
    if number is None or number < NARROWING_SINCE:
        return frozenset()
    having = frozenset(partition.name for partition in partitions if PLACEHOLDER in partition.nodes)
    works = having and any(node.name == PLACEHOLDER and node.state is NodeState.UP for node in nodes)
    return frozenset() if works else having


def without_placeholder(partitions: Mapping[str, Partition], narrowing: frozenset[str]) -> dict[str, Partition]:
    """The partitions, none of which has the placeholder; those in `narrowing` narrow."""
    return {
        name: replace(partition, nodes=partition.nodes - {PLACEHOLDER}, narrows=name in narrowing)
        if PLACEHOLDER in partition.nodes
        else partition
        for name, partition in partitions.items()
    }
