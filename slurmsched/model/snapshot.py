"""Everything one poll saw, in one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from slurmsched.model.job import Job, JobId, JobState
from slurmsched.model.node import Node, Partition, Reservation

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """The cluster at `time` (unix seconds). Job ids and node names are unique.

    `oddities` are things the reader could not make sense of, one sentence each; what they concern is left out.
    """

    time: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    partitions: tuple[Partition, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = field(default=())

    @cached_property
    def job(self) -> dict[JobId, Job]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def node(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def partition(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in self.partitions}

    def in_state(self, *states: JobState) -> Iterator[Job]:
        return (job for job in self.jobs if job.state in states)
