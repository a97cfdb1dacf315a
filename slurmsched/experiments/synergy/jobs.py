"""The jobs of a replay, and what each of them asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmsched.experiments.synergy.models import Model
from slurmsched.policies.synergy import Ask

__all__ = ["Replay", "Work", "ask", "speedup"]


@dataclass(frozen=True, slots=True)
class Work:
    """A job: `iterations` of `model` on so many GPUs, from `arrival` (seconds) on."""

    id: int
    arrival: float
    iterations: int
    gpus: int
    model: Model


@dataclass(frozen=True, slots=True)
class Replay:
    """Jobs in order of arrival, and equal servers: GPUs, CPUs and memory (GB) of each."""

    jobs: Sequence[Work]
    servers: int = 4
    gpus: int = 8
    cpus: float = 24
    memory: float = 500.0

    @property
    def fair(self) -> tuple[float, float]:
        """CPUs and memory beside each GPU in the GPU-proportional share."""
        return self.cpus / self.gpus, self.memory / self.gpus


def ask(place: int, job: Work, replay: Replay) -> Ask:
    """The best-case demand, as far as one server holds it. A job wider than a server gets the proportional share of
    what it would want more of."""
    fair, (wide, gpus) = replay.fair, (job.gpus > replay.gpus, job.gpus)

    def cut(wanted: float, whole: float, share: float) -> float:
        if wanted * gpus <= whole:
            return wanted
        return share if wide else whole / gpus

    best = cut(job.model.cpus, replay.cpus, fair[0]), cut(job.model.memory, replay.memory, fair[1])
    matrix = job.model.matrix
    ladder = tuple(
        (cpus, memory, speed)
        for cpus, row in zip(matrix.cpus, matrix.speed, strict=True)
        for memory, speed in zip(matrix.memory, row, strict=True)
        if cpus <= best[0] and memory <= best[1]
    )
    return Ask(place, gpus, fair, best, ladder)


def speedup(job: Work, asked: Ask, replay: Replay) -> float:
    """The one figure of a model. Where the demand was cut, so is the gain: in proportion to the CPUs above the
    proportional share. A job wider than a server gains nothing."""
    if job.gpus > replay.gpus:
        return 1.0
    fair, ideal = replay.fair[0] * job.gpus, job.model.cpus * job.gpus
    if asked.best == (job.model.cpus, job.model.memory) or ideal == fair:
        return job.model.speedup
    return 1 + (job.model.speedup - 1) / (ideal - fair) * (asked.best[0] * job.gpus - fair)
