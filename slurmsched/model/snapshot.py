"""Everything one poll saw, in one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from slurmsched.model.association import Association
from slurmsched.model.job import Job, JobId, JobState, Share
from slurmsched.model.node import Node, Partition, Reservation

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """The cluster at `time` (unix seconds). Job ids and node names are unique.

    `oddities` are things the reader could not make sense of, one sentence each; what they concern is left out.
    `associations` are empty where nobody asked for them.
    """

    time: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    partitions: tuple[Partition, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = field(default=())
    associations: tuple[Association, ...] = ()

    @cached_property
    def job(self) -> dict[JobId, Job]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def node(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def partition(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in self.partitions}

    def gpus_of(self, job: Job) -> float:
        """GPUs that the job has, parts of one counted as such."""
        return job.gpus + sum(self._part(share) for share in job.shares if share.shards)

    def _part(self, share: Share) -> float:
        node = self.node.get(share.node)
        shards = max((gpu.shards for gpu in node.gpus), default=0) if node else 0
        return share.shards / shards if shards else 0.0

    def in_state(self, *states: JobState) -> Iterator[Job]:
        return (job for job in self.jobs if job.state in states)
