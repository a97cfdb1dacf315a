"""Everything one poll saw, in one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from slurmsched.model.association import Association
from slurmsched.model.job import Job, JobId, JobState, Share
from slurmsched.model.node import Node, Partition, Reservation

__all__ = ["SetAside", "Snapshot"]


@dataclass(frozen=True, slots=True)
class SetAside:
    """A job that exists in Slurm and that nothing is decided about: it could not be read, decided or explained.

    `job` is its number, without the task where a whole array is set aside; `reason` is one sentence for people, and
    never its owner's text. `user` and `partition` are empty where they are not known beyond doubt. `pending` is whether
    it waits without a hold, so that Slurm could start it at once.
    """

    job: JobId
    reason: str
    user: str = ""
    partition: str = ""
    pending: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The cluster at `time` (unix seconds). Job ids and node names are unique.

    `oddities` are things other than jobs that the reader could not make sense of, one sentence each; what they concern
    is left out. `set_aside` are the jobs that it could not make sense of. `associations` are empty where nobody asked
    for them. `private_data` are the words of PrivateData in slurm.conf; where there are any, `operators` are those who
    see everything all the same.
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
    set_aside: tuple[SetAside, ...] = ()
    private_data: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    @cached_property
    def job(self) -> dict[JobId, Job]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def node(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def partition(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in self.partitions}

    def is_gone(self, job: JobId) -> bool:
        """Whether Slurm knows the job no more: not seen is not gone while its record is set aside."""
        return job not in self.job and not {job, job.partition("_")[0]} & self._set_aside

    @cached_property
    def _set_aside(self) -> frozenset[JobId]:
        return frozenset(left.job for left in self.set_aside)

    def gpus_of(self, job: Job) -> float:
        """GPUs that the job has, parts of one counted as such."""
        return job.gpus + sum(self._part(share) for share in job.shares if share.shards)

    def _part(self, share: Share) -> float:
        node = self.node.get(share.node)
        shards = max((gpu.shards for gpu in node.gpus), default=0) if node else 0
        return share.shards / shards if shards else 0.0

    def in_state(self, *states: JobState) -> Iterator[Job]:
        return (job for job in self.jobs if job.state in states)
