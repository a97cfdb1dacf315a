"""Everything one poll saw, in one value: nodes, jobs, and who is promised what by Slurm's accounting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from slurmsched.model.job import Job, JobId, JobState, NodeAllocation
from slurmsched.model.node import Node, Partition, Reservation


@dataclass(frozen=True, slots=True)
class Association:
    """One line of `sshare`: an account, or a user in it. `parent` is the account above, empty for the root's own.

    `shares` count among those with the same parent; None where Slurm says `parent`, and for the root.
    """

    account: str
    user: str = ""
    parent: str = ""
    shares: int | None = 1


@dataclass(frozen=True, slots=True)
class SetAsideJob:
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
    set_aside: tuple[SetAsideJob, ...] = ()
    private_data: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    @cached_property
    def jobs_by_id(self) -> dict[JobId, Job]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def nodes_by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def partitions_by_name(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in self.partitions}

    def is_gone(self, job: JobId) -> bool:
        """Whether Slurm knows the job no more: not seen is not gone while its record is set aside."""
        return job not in self.jobs_by_id and not {job, job.partition("_")[0]} & self._set_aside_ids

    @cached_property
    def _set_aside_ids(self) -> frozenset[JobId]:
        return frozenset(left.job for left in self.set_aside)

    def gpus_of(self, job: Job) -> float:
        """GPUs that the job has, parts of one counted as such."""
        return job.gpus + sum(self._gpu_fraction(share) for share in job.allocations if share.shards)

    def _gpu_fraction(self, share: NodeAllocation) -> float:
        node = self.nodes_by_name.get(share.node)
        shards = max((gpu.shards for gpu in node.gpus), default=0) if node else 0
        return share.shards / shards if shards else 0.0

    def jobs_in_state(self, *states: JobState) -> Iterator[Job]:
        return (job for job in self.jobs if job.state in states)
