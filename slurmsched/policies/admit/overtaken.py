"""The waiting jobs that go back to Slurm's queue, since jobs that are not managed came later and started before them.

A held job has no turn in Slurm's queue, so that jobs which only Slurm places could come before it again and again. In
that queue, Slurm's backfill keeps later ones off, as it does without us. As many of the first of the order go there as
jobs overtook them: whoever submits jobs that only Slurm places takes nobody else's turn, and the order stays in force
for all others. A job that was overtaken once stays there as long as another one that came later waits to do the same.
None goes there while running jobs leave nodes that it could use: Slurm would give it what they left for others, who
would then not start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from slurmsched.arrays import Mask
from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.admit.promise import promise_of
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.session import Session
from slurmsched.policies.state import decode_state, with_part

_STATE_KEY: Final = "overtaken"


@dataclass(frozen=True, slots=True)
class OvertakenJobs:
    """Between two rounds: the waiting jobs that were overtaken, each with the last one that overtook it."""

    by: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_state(cls, state: Mapping[str, object]) -> OvertakenJobs:
        """Return those of the last round; none if there was none."""
        return decode_state(cls, state.get(_STATE_KEY))

    def in_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """Return the policy's state with these jobs."""
        return with_part(state, _STATE_KEY, self if self.by else None)


def overtaken_jobs(session: Session) -> tuple[dict[JobId, Reason], OvertakenJobs]:
    """Return the waiting jobs that go back, each with the reason that names the one that overtook it, and all that were
    overtaken so far."""
    waiting = [session.jobs[ranked.job] for ranked in session.ranking]
    waiting = [job for job in waiting if job.state is JobState.PENDING and job.id not in session.placements]
    known, present = OvertakenJobs.of_state(session.situation.state), session.situation.snapshot.jobs_by_id
    by = {
        job: other
        for job, other in known.by.items()
        if job not in session.placements and job in present and present[job].state is JobState.PENDING
    }
    overtakers, reasons = _Overtakers(session, waiting), dict[JobId, Reason]()
    for job in waiting if overtakers.running or (by and overtakers.waiting) else ():
        if overtakers.would_take_what_others_leave(job):
            continue
        later = overtakers.take_running(job)
        if later is not None:
            by[job.id] = later.id
        elif job.id not in by or not overtakers.take_waiting(job):
            continue
        reasons[job.id] = Reason(ReasonCode.OVERTAKEN, {"job": by[job.id], "promise": overtakers.promised_start(job)})
    return reasons, OvertakenJobs(by)


class _Overtakers:
    """The running and the waiting jobs that are not managed and came later than one of these waiting jobs, the latest
    first."""

    def __init__(self, session: Session, overtaken: Sequence[Job]) -> None:
        self._session, self._promise = session, promise_of(session)
        snapshot, starting = session.situation.snapshot, session.situation.starting
        self._of_partitions = dict[tuple[str, ...], frozenset[str]]()
        self._leaving = session.situation.freeing.union(*(session.jobs[victim].nodes for victim in session.victims))
        since = min((job.submit_time for job in overtaken), default=inf)
        in_the_way = self._promise.waits_for if self._promise else ()
        others = [
            job
            for job in snapshot.jobs
            if job.id not in session.jobs and job.submit_time > since and (job.gpus or job.id in in_the_way)
        ]
        others.sort(key=lambda job: -job.submit_time)
        theirs = self._nodes_of(tuple({name for job in overtaken for name in job.partitions}))
        self.running = [job for job in others if job.state is JobState.RUNNING and not theirs.isdisjoint(job.nodes)]
        self.waiting = [job for job in others if job.id not in starting and job.is_queued(snapshot.time)]
        self._pools = dict[frozenset[str], Mask]()
        self._usable = dict[tuple[ResourceDemand, frozenset[str]], bool]()

    def take_running(self, job: Job) -> Job | None:
        """Return one that overtook the job, and count it for no other job; None if none did."""
        return _take_first(self.running, lambda other: self._overtook(other, job), job.submit_time)

    def take_waiting(self, job: Job) -> Job | None:
        """Return one that would overtake the job if that were held, and count it for no other; None if none would."""
        return _take_first(self.waiting, lambda other: self._overtook(other, job), job.submit_time)

    def would_take_what_others_leave(self, job: Job) -> bool:
        """Whether running jobs leave nodes in this round, or since an earlier one, that the job could use."""
        return self._could_use(job, self._leaving)

    def _could_use(self, job: Job, nodes: frozenset[str]) -> bool:
        """Whether the job could be placed on one of these nodes."""
        demand = self._session.demands.of(job)
        key = demand, nodes
        if key not in self._usable:
            if nodes not in self._pools:
                self._pools[nodes] = self._session.pools.on_nodes(nodes)
            candidates = (*demand.single_node, *demand.multi_node)
            self._usable[key] = any(bool((pools.mask & self._pools[nodes]).any()) for pools in candidates)
        return self._usable[key]

    def promised_start(self, job: Job) -> str:
        """Return when it should start, as the end of a sentence; empty if that is not known."""
        promise = self._promise
        if promise is None or promise.job != job.id or promise.start is None:
            return ""
        nodes = ", ".join(sorted({share.node for share in promise.allocations}))
        return f"; it should start by {time_of_day(promise.start, self._session.situation.snapshot.time)} on {nodes}"

    def _overtook(self, other: Job, job: Job) -> bool:
        """Whether the other job, of no higher tier, has GPUs on a node that this one could use, or would have once it
        has started, or is in the way of its promised start."""
        promise = self._promise
        in_the_way = promise is not None and promise.job == job.id and other.id in promise.waits_for
        tier = self._session.situation.snapshot.priority_tier  # within a tier, Slurm's queue is one for all partitions
        if not (other.gpus or in_the_way) or tier(other) > tier(job):
            return False
        waits = other.state is JobState.PENDING
        return self._could_use(job, self._nodes_of(other.partitions) if waits else frozenset(other.nodes))

    def _nodes_of(self, partitions: tuple[str, ...]) -> frozenset[str]:
        if partitions not in self._of_partitions:
            self._of_partitions[partitions] = self._session.situation.snapshot.nodes_in(partitions)
        return self._of_partitions[partitions]


def _take_first(others: list[Job], found: Callable[[Job], bool], since: float) -> Job | None:
    """Remove and return the first that is found among those that came later than `since`."""
    for at, other in enumerate(others):
        if other.submit_time <= since:
            return None
        if found(other):
            return others.pop(at)
    return None
