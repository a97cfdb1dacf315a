"""Who comes first in a replay (section 2.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.experiments.synergy.jobs import Work

__all__ = ["ORDERS", "Progress"]


@dataclass(slots=True)
class Progress:
    """How far a job is: iterations, seconds of service on all its GPUs, the speed-up that it hopes for, when it ran
    last. `aged`: it once waited so long that it goes before all others."""

    job: Work
    done: float = 0.0
    service: float = 0.0
    hoped: float = 1.0
    last_run: float = -1.0
    aged: bool = False

    @property
    def left(self) -> float:
        """Seconds it still needs."""
        return self.job.model.seconds * (self.job.iterations - self.done) / self.hoped


def _fifo(progress: Progress, _now: float) -> tuple[float, ...]:
    return (progress.job.arrival,)


def _srtf(progress: Progress, _now: float) -> tuple[float, ...]:
    return (-progress.aged, progress.left, progress.job.arrival)


def _las(progress: Progress, _now: float) -> tuple[float, ...]:
    return (-progress.aged, progress.service * progress.job.gpus, progress.job.arrival)


def _ftf(progress: Progress, now: float) -> tuple[float, ...]:
    """By time in the cluster over time alone, the lowest first, as in the authors' simulator."""
    job = progress.job
    rho = (now - job.arrival + progress.left) / (job.model.seconds * job.iterations)
    return (-progress.aged, rho, job.arrival)


ORDERS: Final[Mapping[str, Callable[[Progress, float], tuple[float, ...]]]] = {
    "fifo": _fifo,
    "srtf": _srtf,
    "las": _las,
    "ftf": _ftf,
}
"""The key that jobs are sorted by, ascending, given the time in seconds."""
