"""The result of one poll of Slurm: nodes, jobs, partitions, reservations and associations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from slurmsched.model.job import Job, JobId, JobState, NodeAllocation
from slurmsched.model.limits import NO_LIMITS, Limits
from slurmsched.model.node import Node, Partition, Reservation

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def release_number(release: str) -> tuple[int, int] | None:
    """The year and month of a release of Slurm such as `24.11.5`; None if the text has none."""
    match = _RELEASE.search(release)
    return None if match is None else (int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Association:
    """One line of `sshare`: an account, or a user in it. `parent` is the parent account, empty for the root.

    `shares` are relative to those with the same parent; None if Slurm shows `parent`, and for the root.
    """

    account: str
    user: str = ""
    parent: str = ""
    shares: int | None = 1


@dataclass(frozen=True, slots=True)
class SetAsideJob:
    """A job in Slurm that no round decides about, because reading, deciding or explaining it failed.

    `job` is its id, without the task if a whole array is set aside. `reason` is one sentence for people and contains
    no text of the job's owner. `user` and `partition` are empty if they are not certain. `pending` is whether it waits
    without a hold, so that Slurm could start it at any time, `held_by_hook` whether the submit hook holds it.
    """

    job: JobId
    reason: str
    user: str = ""
    partition: str = ""
    pending: bool = False
    held_by_hook: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The cluster at `time` (unix seconds). Job ids and node names are unique.

    `oddities` are sentences about records other than jobs that could not be read and are left out; `set_aside` are the
    jobs that could not be read. `associations` are empty unless they were asked for. `private_data` holds the words of
    PrivateData in slurm.conf; if there are any, `operators` are the users that see everything nevertheless.
    `preempting_qos` are the QOS for whose jobs Slurm may preempt others; None where that is not known. With
    `widens_shards` a pending job can be given all shards of its GPU instead of some.
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
    limits: Limits = NO_LIMITS
    preempting_qos: frozenset[str] | None = frozenset()
    widens_shards: bool = True

    @cached_property
    def jobs_by_id(self) -> dict[JobId, Job]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def nodes_by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def partitions_by_name(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in self.partitions}

    @cached_property
    def holders(self) -> tuple[Job, ...]:
        """The jobs that have nodes and are not finished."""
        return tuple(job for job in self.jobs if job.allocations and job.state is not JobState.FINISHED)

    def holders_on(self, nodes: Iterable[str]) -> Sequence[Job]:
        """Returns those of them that have one of these nodes."""
        jobs = (job for node in nodes for job in self._holders_by_node.get(node, ()))
        return [*{job.id: job for job in jobs}.values()]

    @cached_property
    def _holders_by_node(self) -> Mapping[str, list[Job]]:
        jobs = defaultdict[str, list[Job]](list)
        for job in self.holders:
            for allocation in job.allocations:
                jobs[allocation.node].append(job)
        return jobs

    def is_gone(self, job: JobId) -> bool:
        """Whether Slurm no longer has the job; a job that is set aside is not gone."""
        return job not in self.jobs_by_id and not {job, job.partition("_")[0]} & self._set_aside_ids

    @cached_property
    def _set_aside_ids(self) -> frozenset[JobId]:
        return frozenset(record.job for record in self.set_aside)

    def gpus_of(self, job: Job) -> float:
        """Returns the GPUs that the job has; shards count as fractions of a GPU."""
        return job.gpus + sum(self._gpu_fraction(allocation) for allocation in job.allocations if allocation.shards)

    def part_of_gpu(self, job: Job) -> float:
        """Returns the GPUs that a job with shards has, or that it asks for if it has none, as a fraction; 0.0 for a job
        without shards."""
        if any(allocation.shards for allocation in job.allocations):
            return self.gpus_of(job)
        most = self._most_shards
        return job.original_request.shards / most if most and not job.allocations else 0.0

    def sharers_of(self, job: Job) -> tuple[Job, ...]:
        """Returns the other jobs, managed or not, on the GPUs that the job has."""
        others = (other for device in job.devices for other in self.jobs_on(*device) if other.id != job.id)
        return tuple({other.id: other for other in others}.values())

    def jobs_on(self, node: str, gpu: int) -> tuple[Job, ...]:
        """Returns the jobs on the GPU of this index."""
        return tuple(self._jobs_by_device.get((node, gpu), ()))

    @cached_property
    def _jobs_by_device(self) -> Mapping[tuple[str, int], list[Job]]:
        jobs = defaultdict[tuple[str, int], list[Job]](list)
        for job in (job for job in self.jobs if job.state is not JobState.FINISHED):
            for device in job.devices:
                jobs[device].append(job)
        return jobs

    @cached_property
    def _most_shards(self) -> int:
        """The shards of the GPU that has most."""
        return max((gpu.shards for node in self.nodes for gpu in node.gpus), default=0)

    def _gpu_fraction(self, allocation: NodeAllocation) -> float:
        node = self.nodes_by_name.get(allocation.node)
        shards = max((gpu.shards for gpu in node.gpus), default=0) if node else 0
        return allocation.shards / shards if shards else 0.0

    def priority_tier(self, job: Job) -> int:
        """The highest PriorityTier of the job's partitions; 0 where none of them is known."""
        return max((partition.priority_tier for partition in self.partitions_of(job)), default=0)

    def partitions_of(self, job: Job) -> tuple[Partition, ...]:
        """Returns those of the job's partitions that are known."""
        return tuple(self.partitions_by_name[name] for name in job.partitions if name in self.partitions_by_name)

    def nodes_in(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the nodes of the partitions of these names."""
        known = (self.partitions_by_name[name] for name in names if name in self.partitions_by_name)
        return frozenset().union(*(partition.nodes for partition in known))

    def jobs_in_state(self, *states: JobState) -> Iterator[Job]:
        return (job for job in self.jobs if job.state in states)
