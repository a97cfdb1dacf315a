"""Finish-time fairness (Themis: Mahajan et al., NSDI 2020, section 3; Synergy, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from slurmsched.model import Job, Ranked
from slurmsched.model.wording import span
from slurmsched.policies.ordering.sorting import ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["FinishTimeFairness"]


@dataclass(frozen=True, slots=True)
class FinishTimeFairness:
    """By rho, the highest first: how long the job takes in this cluster, from submission to end if it ran from now on,
    over how long it would take alone on its fair part of the GPUs.

    A newcomer displaces only a job whose rho is `clearly` times smaller.
    """

    clearly: float = 1.5
    name: str = "ftf"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        part = _fair_part(situation)
        times = {job.id: _times(situation, job, part) for job in situation.jobs}
        rho = {job_id: shared / alone for job_id, (shared, alone) in times.items()}

        def said(job: Job) -> str:
            shared, alone = times[job.id]
            return f"rho {rho[job.id]:.2f}: {span(shared)} here, {span(alone)} on its fair part"

        return ranked(situation, lambda job: (-rho[job.id],), said)

    def outranks(self, situation: Situation) -> Outranks:
        part = _fair_part(situation)
        times = {job.id: _times(situation, job, part) for job in situation.jobs}
        rho = {job: shared / alone for job, (shared, alone) in times.items()}
        return lambda newcomer, running: rho[newcomer.id] >= self.clearly * rho[running.id]


def _fair_part(situation: Situation) -> float:
    """GPUs per job if all were shared out evenly."""
    total = sum(len(node.gpus) for node in situation.snapshot.nodes)
    return max(total, 1) / max(len(situation.jobs), 1)


def _times(situation: Situation, job: Job, fair_part: float) -> tuple[float, float]:
    """Seconds from submission to end, shared and alone. Where nothing is known a job is half done."""
    knowledge = situation.knowledge
    executed, remaining = knowledge.executed(job), knowledge.remaining(job)
    if isinf(remaining):
        remaining = max(executed, situation.period)
    shared = max(0.0, situation.snapshot.time - job.submit_time) + remaining
    alone = (executed + remaining) * max(1.0, job.gpus / fair_part)
    return shared, alone
