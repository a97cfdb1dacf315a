"""Least attained service, discretised as in Tiresias (Gu et al., NSDI 2019, sections 3.2 and 3.3)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from slurmsched.model import Job, JobId, Ranked
from slurmsched.model.wording import gpu_time
from slurmsched.policies.ordering.sorting import ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["LeastAttainedService"]


@dataclass(frozen=True, slots=True)
class LeastAttainedService:
    """By the GPU-seconds a job has had. `queues` are the bounds between the queues, ascending: inside a queue jobs go
    by submission, so that two of like service do not take turns. Without bounds the service itself is the key.

    A job that has waited `patience` times as long as it has run counts as in the first queue (Tiresias' promotion of
    starved jobs; the factor is ours). A newcomer displaces only a job of a later queue or, without queues, one that
    has had `clearly` times its service and more than the newcomer gets in a round.
    """

    queues: tuple[float, ...] = ()
    patience: float = 8.0
    clearly: float = 2.0
    name: str = "las"

    def queue(self, situation: Situation, job: Job) -> int:
        """Its queue, the first is 0."""
        place = bisect_right(self.queues, situation.knowledge.attained(job))
        return 0 if place and self._starves(situation, job) else place

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        attained = situation.knowledge.attained
        if not self.queues:
            return ranked(situation, lambda job: (attained(job),), lambda job: f"{gpu_time(attained(job))} attained")
        count, queues = len(self.queues) + 1, self._queues(situation)

        def said(job: Job) -> str:
            return f"{gpu_time(attained(job))} attained, queue {queues[job.id] + 1} of {count}"

        return ranked(situation, lambda job: (queues[job.id],), said)

    def outranks(self, situation: Situation) -> Outranks:
        attained, queues = situation.knowledge.attained, self._queues(situation)

        def earlier_queue(newcomer: Job, running: Job) -> bool:
            return queues[newcomer.id] < queues[running.id]

        def far_less(newcomer: Job, running: Job) -> bool:
            own, other = attained(newcomer), attained(running)
            return other >= own * self.clearly and other > own + situation.period * newcomer.gpus

        return earlier_queue if self.queues else far_less

    def _queues(self, situation: Situation) -> dict[JobId, int]:
        return {job.id: self.queue(situation, job) for job in situation.jobs}

    def _starves(self, situation: Situation, job: Job) -> bool:
        executed = situation.knowledge.executed(job)
        waited = situation.snapshot.time - job.submit_time - executed
        return waited >= self.patience * executed
