"""A round of fragmentation gradient descent (Weng et al., ATC 2023, algorithm 1), nobody displaced.

In order, each waiting job goes where it leaves the least of what is idle unusable for the usual jobs, those of the last
days. Jobs without GPUs are placed alike, which keeps them off nodes whose idle GPUs they would strand.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.model import Code, Decision, Job, JobId, JobState, Reason, Target
from slurmsched.policies.fgd.cluster import FragmentedCluster
from slurmsched.policies.fgd.seating import Seats
from slurmsched.policies.fgd.wanting import wanting
from slurmsched.policies.protocol import Ordering, Situation

__all__ = ["FragmentationDescent"]


@dataclass(frozen=True, slots=True)
class FragmentationDescent:
    """The whole system. Where a job does not fit, those behind it are still tried."""

    ordering: Ordering
    name: str = "fgd"

    def decide(self, situation: Situation) -> Decision:
        order = self.ordering.rank(situation)
        jobs = {job.id: job for job in situation.jobs}
        seats = Seats.of(situation)
        empty: FragmentedCluster | None = None
        targets, waiting = dict[JobId, Target](), dict[JobId, Reason]()
        for ranked in order:
            job = jobs[ranked.job]
            if _has_a_lease(job):
                targets[job.id] = Target(job.id, job.shares, (Reason(Code.KEEPS_LEASE),))
            elif job.state is JobState.COMPLETING:
                said = {"jobs": "its own last run", "nodes": ", ".join(job.nodes)}
                waiting[job.id] = Reason(Code.FREED_SOON, said)
            elif shares := seats.place(job):
                first = Reason(Code.FIRST_IN_ORDER, {"order": self.ordering.name})
                turn = Reason(Code.FILLS_IN) if waiting else first
                targets[job.id] = Target(job.id, shares, (turn, Reason(Code.FEWEST_FRAGMENTS)))
            else:
                empty = empty or seats.cluster.emptied()
                waiting[job.id] = wanting(job, empty)
        return Decision(self.name, order, targets, waiting, {}, dict(situation.state))


def _has_a_lease(job: Job) -> bool:
    return bool(job.shares) and job.state in (JobState.RUNNING, JobState.SUSPENDED)
