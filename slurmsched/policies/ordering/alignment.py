"""Packing by alignment (Tetris: Grandl et al., SIGCOMM 2014, section 3.2; compared with in Synergy, section 5.7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmsched.model import Job, Ranked
from slurmsched.policies.ordering.sorting import nobody, ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["Alignment"]


@dataclass(frozen=True, slots=True)
class Alignment:
    """By the product of what a job asks and what is free, the largest first: both as parts of a whole node, and of all
    nodes the one that suits the job best. Running jobs come before. Nobody is displaced."""

    name: str = "tetris"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        nodes = [node for node in situation.snapshot.nodes if node.gpus]
        whole = np.array([(n.total.gpus, n.total.cpus, max(n.total.memory, 1)) for n in nodes], dtype=float)
        free = np.array([(n.free.gpus, n.free.cpus, n.free.memory) for n in nodes], dtype=float)
        parts, reciprocal = free / whole, 1 / whole
        score: dict[str, float] = {}
        for job in situation.jobs:
            asked = np.array(_asked(job)) * reciprocal
            score[job.id] = float(np.max((asked * parts).sum(axis=1), initial=0.0))

        def said(job: Job) -> str:
            return "runs" if job.shares else f"alignment {score[job.id]:.2f}"

        return ranked(situation, lambda job: (not job.shares, -score[job.id]), said)

    def outranks(self, situation: Situation) -> Outranks:  # noqa: ARG002 as the protocol has it
        return nobody


def _asked(job: Job) -> tuple[float, float, float]:
    """On one node."""
    nodes = max(job.request.nodes, 1)
    return job.request.gpus / nodes, job.request.cpus / nodes, float(job.request.memory)
