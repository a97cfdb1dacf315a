"""Who uses the same GPUs as a running job, read back from Slurm, and what each keeps of its speed there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from slurmsched.knowledge import Knowledge
from slurmsched.model import Code, Job, JobId, JobState, Node, Reason, Share, Snapshot, Target
from slurmsched.policies.tesserae.pairing import kept_by_both, may_share

__all__ = ["Company", "shared_gpu", "type_of"]


class Company:
    """Jobs by the devices they use, managed or not."""

    def __init__(self, snapshot: Snapshot, knowledge: Knowledge, managed: frozenset[JobId]) -> None:
        self._nodes, self._knowledge, self._managed = snapshot.node, knowledge, managed
        self._users = defaultdict[tuple[str, int], list[Job]](list)
        for job in (job for job in snapshot.jobs if job.state is not JobState.FINISHED):
            for device in _devices(job):
                self._users[device].append(job)

    def of(self, job: Job) -> tuple[Job, ...]:
        """The others on its devices."""
        others = {other.id: other for device in _devices(job) for other in self._users[device] if other.id != job.id}
        return tuple(others.values())

    def on(self, node: str, gpu: int) -> str:
        """Who uses this device, for people: `jobs 4, 7`."""
        return _listed(self._users[node, gpu])

    def lease(self, job: Job) -> Target:
        """The running job goes on; whom it shares its GPUs with, and how fast it is there."""
        others = self.of(job)
        if not others:
            return Target(job.id, job.shares, (Reason(Code.KEEPS_LEASE),))
        gpu_type = type_of(job.shares, self._nodes)
        speed = min(self._knowledge.beside(job, other, gpu_type) for other in others)
        if len(others) == 1 and self._is_pair(job, others[0]):
            both = kept_by_both(self._knowledge, job, others[0], gpu_type)
            if both is not None:
                return Target(job.id, job.shares, (shared_gpu(job.shares, others[0].id, both),), speed, (others[0].id,))
        why = Reason(Code.SHARES_UNASKED, {"devices": _names(job.shares), "jobs": _listed(others)})
        return Target(job.id, job.shares, (why,), speed)

    def _is_pair(self, job: Job, other: Job) -> bool:
        """Whether they are on the same devices, ours both, and both allow it."""
        ours = other.id in self._managed and may_share(job) and may_share(other)
        return ours and set(_devices(job)) == set(_devices(other))


def shared_gpu(shares: Sequence[Share], partner: JobId, kept: tuple[float, float]) -> Reason:
    """That a job has these shares beside another, and what both together do of what one does alone."""
    work = f"{round(sum(kept), 2):g}"
    return Reason(Code.SHARES_GPU, {"devices": _names(shares), "job": partner, "work": work})


def _names(shares: Sequence[Share]) -> str:
    """For people: `GPU 0 of v100-1`."""
    return ", ".join(f"GPU {index} of {share.node}" for share in shares for index in share.indices)


def type_of(shares: Sequence[Share], nodes: Mapping[str, Node]) -> str:
    """The GPU type of the first share; Slurm does not say it of shards, so the node does."""
    first, home = shares[0], nodes.get(shares[0].node)
    return first.gpu_type or next(iter(home.gpu_types if home else ()), "")


def _listed(jobs: Sequence[Job]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(job.id for job in jobs)}"


def _devices(job: Job) -> list[tuple[str, int]]:
    return [(share.node, index) for share in job.shares for index in share.indices]
