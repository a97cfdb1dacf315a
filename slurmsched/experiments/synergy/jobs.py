"""Jobs of a replay, built from the authors' measured models, their demands, and one round of them under each of
Synergy's mechanisms: which jobs run, and how fast (section 4)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cattrs import BaseValidationError, Converter

from slurmsched.experiments.synergy.allocation import (
    FreeServers,
    SynergyGrant,
    SynergyJob,
    SynergyVariant,
    place_greedy,
    place_proportional,
    place_tune,
)
from slurmsched.experiments.synergy.opt import JobClass, PooledOpt
from slurmsched.knowledge import ProfileError, SensitivityMatrix
from slurmsched.knowledge.published import SYNERGY_MODEL_NAMES


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model on one GPU, as measured for servers of one CPU to GPU ratio. CPUs and memory (GB) are per GPU.

    `best_cpus` and `best_memory` are the best-case demand. `speedup` is the speed with it over that with the
    GPU-proportional share, with which an iteration takes `iteration_seconds`.
    """

    name: str
    task: str
    best_cpus: float
    best_memory: float
    speedup: float
    iteration_seconds: float
    matrix: SensitivityMatrix


_REQUIRED_KEYS: Final = ("model", "cpus", "mem", "speedup", "iter_time", "tput", "cpu_gpu_ratio")


def load_models(path: Path, cpus_per_gpu: int = 3) -> Mapping[str, MeasuredModel]:
    """Returns the models measured for this CPU to GPU ratio, by the authors' names and by ours. Raises ProfileError."""
    converter = Converter()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot read the models {path}: {error}") from error
    try:
        cpu_points = converter.structure(data["metadata"]["tput_rows"]["values"], tuple[float, ...])
        memory_points = converter.structure(data["metadata"]["tput_cols"]["values_for_5_columns"], tuple[float, ...])
        entries = list(data["profiles"])
    except (KeyError, TypeError, ValueError, BaseValidationError) as error:
        raise ProfileError(f"{path}: expected metadata with the axes and a list of profiles: {error!r}") from error
    models: dict[str, MeasuredModel] = {}
    for number, entry in enumerate(entries, start=1):
        location = f"{path}: profile {number}"
        if not isinstance(entry, dict) or (missing := [key for key in _REQUIRED_KEYS if key not in entry]):
            raise ProfileError(
                f"{location}: expected a table with {', '.join(_REQUIRED_KEYS)}, {missing[0]} is missing"
            )
        if entry["cpu_gpu_ratio"] == cpus_per_gpu and entry.get("read_by_simulator", True):
            model = _parse_model(entry, location, cpu_points, memory_points, converter)
            models[model.name] = models[SYNERGY_MODEL_NAMES.get(model.name, model.name)] = model
    if not models:
        raise ProfileError(f"{path}: no profile has cpu_gpu_ratio {cpus_per_gpu}")
    return models


def _parse_model(
    entry: Mapping[str, object],
    location: str,
    cpu_points: tuple[float, ...],
    memory_points: tuple[float, ...],
    converter: Converter,
) -> MeasuredModel:
    amounts: dict[str, float] = {}
    for key in ("cpus", "mem", "speedup", "iter_time"):
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ProfileError(f"{location}: {key}: expected a number above 0, not {value!r}")
        amounts[key] = float(value)
    try:
        speed = converter.structure(entry["tput"], tuple[tuple[float, ...], ...])
    except (BaseValidationError, TypeError, ValueError) as error:
        raise ProfileError(f"{location}: tput: expected rows of numbers: {error!r}") from error
    if len(speed) != len(cpu_points) or any(len(row) != len(memory_points) for row in speed):
        raise ProfileError(f"{location}: tput: expected {len(cpu_points)} rows of {len(memory_points)} numbers")
    return MeasuredModel(
        name=str(entry["model"]),
        task=str(entry.get("task") or ""),
        best_cpus=amounts["cpus"],
        best_memory=amounts["mem"],
        speedup=amounts["speedup"],
        iteration_seconds=amounts["iter_time"],
        matrix=SensitivityMatrix(cpu_points, memory_points, speed),
    )


@dataclass(frozen=True, slots=True)
class IterationJob:
    """A job of `iterations` iterations of `model`. `arrival` is in seconds."""

    id: int
    arrival: float
    iterations: int
    gpus: int
    model: MeasuredModel


@dataclass(frozen=True, slots=True)
class ReplayScenario:
    """Jobs in order of arrival, and equal servers. Memory is in GB."""

    jobs: Sequence[IterationJob]
    server_count: int = 4
    gpus_per_server: int = 8
    cpus_per_server: float = 24
    memory_per_server: float = 500.0

    @property
    def fair_share(self) -> tuple[float, float]:
        """Returns the GPU-proportional share: CPUs and memory (GB) per GPU."""
        return self.cpus_per_server / self.gpus_per_server, self.memory_per_server / self.gpus_per_server


def to_synergy_job(index: int, job: IterationJob, scenario: ReplayScenario) -> SynergyJob:
    """Returns the job with its best-case demand, capped to one server.

    A job wider than a server gets the proportional share of resources of which its demand exceeds a server.
    """
    fair, (wider_than_server, gpus) = scenario.fair_share, (job.gpus > scenario.gpus_per_server, job.gpus)

    def cap(wanted: float, whole: float, share: float) -> float:
        if wanted * gpus <= whole:
            return wanted
        return share if wider_than_server else whole / gpus

    best = (
        cap(job.model.best_cpus, scenario.cpus_per_server, fair[0]),
        cap(job.model.best_memory, scenario.memory_per_server, fair[1]),
    )
    matrix = job.model.matrix
    speed_points = tuple(
        (cpus, memory, speed)
        for cpus, row in zip(matrix.cpus, matrix.speed, strict=True)
        for memory, speed in zip(matrix.memory, row, strict=True)
        if cpus <= best[0] and memory <= best[1]
    )
    return SynergyJob(index, gpus, fair, best, speed_points)


def capped_speedup(job: IterationJob, synergy_job: SynergyJob, scenario: ReplayScenario) -> float:
    """Returns the model's speed-up. If the demand was capped, the gain shrinks in proportion to the CPUs above the
    proportional share. A job wider than a server gains nothing."""
    if job.gpus > scenario.gpus_per_server:
        return 1.0
    fair, ideal = scenario.fair_share[0] * job.gpus, job.model.best_cpus * job.gpus
    if synergy_job.best_case == (job.model.best_cpus, job.model.best_memory) or ideal == fair:
        return job.model.speedup
    return 1 + (job.model.speedup - 1) / (ideal - fair) * (synergy_job.best_case[0] * job.gpus - fair)


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
