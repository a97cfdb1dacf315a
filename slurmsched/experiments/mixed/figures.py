"""What a replay left behind, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median

from slurmsched.experiments.mixed.work import Work

__all__ = ["Replayed", "RoundRecord"]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: when it began, how long it lasted, and by GPU type the GPU-seconds that jobs kept busy.

    `granted` counts GPUs by type, `running` and `waiting` jobs. `extended` are grants that went on with the workers
    and jobs they had, `could` those of the round before whose jobs had not all ended.
    """

    time: float
    length: float
    busy: Mapping[str, float]
    granted: Mapping[str, int]
    running: int
    waiting: int
    extended: int
    could: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay to its end. `ends`: when each job ended, in seconds from the start; `gpus`: the cluster's, by type."""

    policy: str
    work: tuple[Work, ...]
    ends: Mapping[str, float]
    gpus: Mapping[str, int]
    rounds: tuple[RoundRecord, ...]
    decisions: tuple[float, ...]
    """Seconds each decision took."""

    @property
    def makespan(self) -> float:
        """Seconds from the start to the last end."""
        return max(self.ends.values(), default=0.0)

    @property
    def jct(self) -> tuple[float, ...]:
        """Seconds from arrival to end of each job."""
        return tuple(self.ends[work.id] - work.arrival for work in self.work)

    @property
    def mean_jct(self) -> float:
        return fmean(self.jct)

    @property
    def median_jct(self) -> float:
        return median(self.jct)

    @property
    def utilisation(self) -> float:
        """Part of all GPU-seconds from the start to the last end that jobs kept busy."""
        busy = sum(sum(record.busy.values()) for record in self.rounds)
        whole = sum(self.gpus.values()) * self.makespan
        return busy / whole if whole else 0.0

    @property
    def utilisations(self) -> tuple[tuple[float, float], ...]:
        """A curve: when each round began, and the part of all GPUs that was busy in it; it ends with the last job."""
        gpus = sum(self.gpus.values())
        curve = tuple((r.time, sum(r.busy.values()) / (gpus * r.length)) for r in self.rounds if r.length)
        return (*curve, (self.makespan, 0.0))

    def utilisation_of(self, gpu_type: str) -> tuple[tuple[float, float], ...]:
        """The same of this type's GPUs."""
        gpus = self.gpus[gpu_type]
        curve = tuple((r.time, r.busy.get(gpu_type, 0.0) / (gpus * r.length)) for r in self.rounds if r.length)
        return (*curve, (self.makespan, 0.0))
