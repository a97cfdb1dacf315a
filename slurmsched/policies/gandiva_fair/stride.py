"""Stride scheduling, plain and for gangs (Gandiva_fair, slides 7 and 8).

The plain one is Waldspurger and Weihl's (MIT/LCS/TM-528, 1995).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from slurmsched.model import JobId

__all__ = ["Strider", "gang_aware", "plain"]


@dataclass(frozen=True, slots=True)
class Strider:
    """A job that takes turns: it needs all its `size` GPUs at once. `tickets` are above zero."""

    job: JobId
    tickets: float
    size: int = 1

    @property
    def stride(self) -> float:
        """How far one quantum takes it."""
        return self.size / self.tickets


def plain(queue: Sequence[Strider], passes: MutableMapping[JobId, float]) -> JobId:
    """The job of the least pass has the quantum, whatever its size; among equals the first of the queue."""
    job = min(queue, key=lambda job: passes[job.job])
    passes[job.job] += 1 / job.tickets
    return job.job


def gang_aware(queue: Sequence[Strider], passes: MutableMapping[JobId, float], gpus: int) -> tuple[JobId, ...]:
    """Those that have the next quantum on a server of so many GPUs: in order of pass, whoever still fits.

    Passes are brought forward. Among equals the first of the queue goes first.
    """
    scheduled: list[JobId] = []
    for job in sorted(queue, key=lambda job: passes[job.job]):
        if job.size <= gpus:
            scheduled.append(job.job)
            gpus -= job.size
            passes[job.job] += job.stride
    return tuple(scheduled)
