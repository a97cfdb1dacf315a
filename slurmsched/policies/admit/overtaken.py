"""The waiting jobs that go back to Slurm's queue, since jobs that are not managed came later and started before them.

A held job has no turn in Slurm's queue, so that jobs which only Slurm places could come before it again and again. In
that queue, Slurm's backfill keeps later ones off, as it does without us. As many of the first of the order go there as
jobs overtook them: whoever submits jobs that only Slurm places takes nobody else's turn, and the order stays in force
for all others. None goes there while running jobs leave nodes that it could use: Slurm would give it what they left for
others, who would then not start.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.admit.promise import promise_of
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.session import Session

_LEAVING: Final = ""
"""Stands for all jobs that leave their nodes for others."""


def overtaken_jobs(session: Session) -> dict[JobId, Reason]:
    """Return the waiting jobs that others overtook, each with the reason that names one of them."""
    waiting = [session.jobs[ranked.job] for ranked in session.ranking]
    waiting = [job for job in waiting if job.state is JobState.PENDING and job.id not in session.placements]
    overtakers, reasons = _Overtakers(session, waiting), dict[JobId, Reason]()
    for job in waiting if overtakers.by_time else ():
        later = None if overtakers.could_use(job, _LEAVING) else overtakers.take_one(job)
        if later is not None:
            reasons[job.id] = Reason(ReasonCode.OVERTAKEN, {"job": later.id, "promise": overtakers.promised_start(job)})
    return reasons


class _Overtakers:
    """The running jobs that are not managed and came later than one of these waiting jobs, the latest first."""

    def __init__(self, session: Session, waiting: Iterable[Job]) -> None:
        self._session, self._promise = session, promise_of(session)
        since = min((job.submit_time for job in waiting), default=inf)
        running = session.situation.snapshot.jobs_in_state(JobState.RUNNING)
        others = (job for job in running if job.id not in session.jobs and job.submit_time > since)
        self.by_time = sorted(others, key=lambda job: -job.submit_time)
        nodes = {job.id: frozenset(job.nodes) for job in self.by_time} | {_LEAVING: _freeing_nodes(session)}
        self._pools = {job: session.pools.on_nodes(names) for job, names in nodes.items()}
        self._usable = dict[tuple[ResourceDemand, JobId], bool]()

    def take_one(self, job: Job) -> Job | None:
        """Return one that overtook the job, and count it for no other job; None if none did."""
        for at, other in enumerate(self.by_time):
            if other.submit_time <= job.submit_time:
                return None
            if self._overtook(other, job):
                return self.by_time.pop(at)
        return None

    def could_use(self, job: Job, other: JobId) -> bool:
        """Whether the job could be placed on a node of the other one."""
        demand = self._session.demands.of(job)
        key = demand, other
        if key not in self._usable:
            candidates = (*demand.single_node, *demand.multi_node)
            self._usable[key] = any(bool((pools.mask & self._pools[other]).any()) for pools in candidates)
        return self._usable[key]

    def promised_start(self, job: Job) -> str:
        """Return when it should start, as the end of a sentence; empty if that is not known."""
        promise = self._promise
        if promise is None or promise.job != job.id or promise.start is None:
            return ""
        nodes = ", ".join(sorted({share.node for share in promise.allocations}))
        return f"; it should start by {time_of_day(promise.start, self._session.situation.snapshot.time)} on {nodes}"

    def _overtook(self, other: Job, job: Job) -> bool:
        """Whether the other job runs in a partition of this one, with GPUs on a node that this one could use, or in the
        way of its promised start."""
        promise = self._promise
        in_the_way = promise is not None and promise.job == job.id and other.id in promise.waits_for
        if not (other.gpus or in_the_way) or set(other.partitions).isdisjoint(job.partitions):
            return False
        return self.could_use(job, other.id)


def _freeing_nodes(session: Session) -> frozenset[str]:
    """The nodes that running jobs leave in this round, or since an earlier one."""
    return session.situation.freeing.union(*(session.jobs[victim].nodes for victim in session.victims))
