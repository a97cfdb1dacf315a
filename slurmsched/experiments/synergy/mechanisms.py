"""One round of a replay under each of Synergy's mechanisms: which jobs run, and how fast (section 4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from slurmsched.experiments.synergy.allocation import (
    FreeServers,
    SynergyGrant,
    SynergyJob,
    SynergyVariant,
    place_greedy,
    place_proportional,
    place_tune,
)
from slurmsched.experiments.synergy.jobs import IterationJob, ReplayScenario, capped_speedup, to_synergy_job
from slurmsched.experiments.synergy.opt import JobClass, PooledOpt

Mechanism = Callable[[Sequence[SynergyJob], FreeServers, SynergyVariant], list[SynergyGrant]]


class ReplayMechanism(Protocol):
    """A mechanism over the jobs of one replay."""

    def round_speeds(self, selected: Sequence[int]) -> Mapping[int, RoundSpeed]:
        """Returns the speeds of the jobs that run this round. `selected` are indices of the replay's jobs."""

    def expected_speedup(self, index: int) -> float:
        """Returns the speed-up with which the order estimates the remaining time of a job that does not run."""


@dataclass(frozen=True, slots=True)
class RoundSpeed:
    """Speeds relative to the proportional share: `rate` in this round, and `expected`, with which the order estimates
    the remaining time (the authors' SRTF and FTF)."""

    rate: float
    expected: float


class PlacedMechanism:
    """Proportional, Greedy or Tune."""

    def __init__(self, mechanism: Mechanism, scenario: ReplayScenario, variant: SynergyVariant) -> None:
        self._mechanism, self._scenario, self._variant = mechanism, scenario, variant
        self._jobs = [to_synergy_job(index, job, scenario) for index, job in enumerate(scenario.jobs)]
        self._speedups = [capped_speedup(job, self._jobs[index], scenario) for index, job in enumerate(scenario.jobs)]

    def grants(self, selected: Sequence[int]) -> list[SynergyGrant]:
        """Returns the grants of the selected jobs on empty servers."""
        scenario = self._scenario
        servers = FreeServers.uniform(
            scenario.server_count, scenario.gpus_per_server, scenario.cpus_per_server, scenario.memory_per_server
        )
        return self._mechanism([self._jobs[index] for index in selected], servers, self._variant)

    def round_speeds(self, selected: Sequence[int]) -> Mapping[int, RoundSpeed]:
        speed_of = self._speed_from_matrix if self._variant.uses_matrix_speed else self._speed_from_speedup
        return {grant.job.job_id: speed_of(grant) for grant in self.grants(selected)}

    def expected_speedup(self, index: int) -> float:
        without_gain = self._variant.uses_matrix_speed or self._mechanism is place_proportional
        return 1.0 if without_gain else self._speedups[index]

    def _speed_from_matrix(self, grant: SynergyGrant) -> RoundSpeed:
        matrix = self._scenario.jobs[grant.job.job_id].model.matrix
        return RoundSpeed(matrix.speed_at(*grant.per_gpu) / matrix.speed_at(*grant.job.fair), 1.0)

    def _speed_from_speedup(self, grant: SynergyGrant) -> RoundSpeed:
        speedup = self._speedups[grant.job.job_id]
        return RoundSpeed(1.0 if grant.reverted or grant.replaced else speedup, 1.0 if grant.reverted else speedup)


class OptBound:
    """Opt: the pooled integer program. Its solution is not placed on servers; it is an upper bound (section 4.1.3)."""

    def __init__(self, scenario: ReplayScenario, variant: SynergyVariant) -> None:
        self._scenario, self._variant = scenario, variant
        self._pooled_opt = PooledOpt(
            scenario.server_count * scenario.cpus_per_server, scenario.server_count * scenario.memory_per_server
        )
        self._speedups = [
            capped_speedup(job, to_synergy_job(index, job, scenario), scenario)
            for index, job in enumerate(scenario.jobs)
        ]

    def round_speeds(self, selected: Sequence[int]) -> Mapping[int, RoundSpeed]:
        by_class: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for index in selected:
            job = self._scenario.jobs[index]
            by_class[job.model.name, job.gpus].append(index)
        job_classes = [self._job_class(self._scenario.jobs[indices[0]], len(indices)) for indices in by_class.values()]
        speed_by_job: dict[int, RoundSpeed] = {}
        for indices, kind, counts in zip(
            by_class.values(), job_classes, self._pooled_opt.maximise_throughput(job_classes), strict=True
        ):
            # The first jobs in the policy's order get the fastest points.
            fastest = sorted(range(len(counts)), key=lambda point: -kind.speed[point])
            speeds = [kind.speed[point] for point in fastest for _ in range(counts[point])]
            for index, speed in zip(indices, speeds, strict=True):
                speed_by_job[index] = RoundSpeed(speed / kind.fair, self.expected_speedup(index))
        return speed_by_job

    def expected_speedup(self, index: int) -> float:
        return 1.0 if self._variant.uses_matrix_speed else self._speedups[index]

    def _job_class(self, job: IterationJob, count: int) -> JobClass:
        matrix = job.model.matrix
        points = [
            (cpus, memory, speed)
            for cpus, row in zip(matrix.cpus, matrix.speed, strict=True)
            for memory, speed in zip(matrix.memory, row, strict=True)
        ]
        return JobClass(
            count,
            tuple(job.gpus * cpus for cpus, _, _ in points),
            tuple(job.gpus * memory for _, memory, _ in points),
            tuple(speed for _, _, speed in points),
            matrix.speed_at(*self._scenario.fair_share),
        )


MECHANISMS: Final[Mapping[str, Callable[[ReplayScenario, SynergyVariant], ReplayMechanism]]] = {
    "proportional": lambda scenario, variant: PlacedMechanism(place_proportional, scenario, variant),
    "greedy": lambda scenario, variant: PlacedMechanism(place_greedy, scenario, variant),
    "tune": lambda scenario, variant: PlacedMechanism(place_tune, scenario, variant),
    "opt": OptBound,
}
"""Synergy's mechanisms and the baseline, by name."""
