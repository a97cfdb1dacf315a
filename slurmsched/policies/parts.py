"""Jobs with a part of a GPU under `unified`: among themselves they bid as jobs with whole GPUs do in the market.

The market is of whole GPUs, and such jobs have what it leaves. By submission a job of two minutes waited for hours
behind jobs that take days. By the part of a GPU and the time that it still needs the shorter comes first, as with whole
GPUs (`policies.unified`), and what waits for its first start counts more and more. Who owns them does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf
from typing import Final

from slurmsched.model import Job, JobId, RankedJob
from slurmsched.model.reasons import format_gpu_hours
from slurmsched.policies.admit.allocate import has_part
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.orders import rank_by
from slurmsched.policies.session import Session
from slurmsched.policies.stages import PreemptionRule, Situation
from slurmsched.policies.unified import SHORTEST, bid, seconds_left, urged, waited

_MIN_RATIO: Final = 2.0


@dataclass(frozen=True, slots=True)
class HighestBid:
    """The jobs without GPUs by submission, then those with parts of GPUs by what they bid for a GPU, the highest first.

    A newcomer with a part preempts only one that bids half as much at most: what waits bids more as time passes, and
    the two shall not change places to and fro.
    """

    name: str = "unified"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        sizes = _sizes(situation)
        bids = _bids(situation, sizes)

        def reason(job: Job) -> str:
            return f"{format_gpu_hours(sizes[job.id])} to go" if bids[job.id] else "no GPUs"

        return rank_by(situation, lambda job: (-bids[job.id] if bids[job.id] else -inf,), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        bids = _bids(situation, _sizes(situation))

        def bids_far_more(newcomer: Job, running: Job) -> bool:
            return 0 < _MIN_RATIO * bids[running.id] <= bids[newcomer.id]

        return bids_far_more


def _bids(situation: Situation, sizes: Mapping[JobId, float]) -> Mapping[JobId, float]:
    """Returns what each job of that size bids for a GPU at its best rate; 0.0 without a part of a GPU."""
    return {job.id: bid(sizes[job.id], sizes[job.id], urged(waited(job, situation))) for job in situation.jobs}


def _sizes(situation: Situation) -> Mapping[JobId, float]:
    """Returns the GPU-seconds that each job still needs; 0.0 without a part of a GPU."""
    known, left = situation.knowledge, seconds_left(situation.snapshot)
    return {job.id: known.parts_of_gpu.get(job.id, 0.0) * max(left(known, job), SHORTEST) for job in situation.jobs}


def preempt_parts(session: Session) -> None:
    """Finish step: jobs with parts of GPUs that wait preempt others with parts that bid far less."""
    if session.moves_left <= 0 or not any(has_part(session.jobs[job]) for job in session.running):
        return
    step = _PreemptParts(session)
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if has_part(job) and session.needs_placement(job):
            step.try_admit(job)


class _PreemptParts(Preempt):
    """Preempts jobs with parts of GPUs alone."""

    def _preemptible_among(self, running: Set[JobId]) -> Iterable[JobId]:
        jobs = self.session.jobs
        return [job for job in running if has_part(jobs[job]) and self.session.is_preemptible(job)]
