"""A round of the replay: workers, jobs, what a policy is given and what it grants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol


@dataclass(frozen=True)
class GpuWorkers:
    """GPU type and server of each worker, whose number is its place. Workers of one server lie side by side."""

    gpu_types: tuple[str, ...]
    server_indices: tuple[int, ...]

    @classmethod
    def from_gpu_counts(cls, counts: Mapping[str, int], per_server: int = 4) -> GpuWorkers:
        """So many GPUs of each type, on servers of one type each; a type's last server may have fewer."""
        server_sizes = [
            min(per_server, count - first) for count in counts.values() for first in range(0, count, per_server)
        ]
        gpu_types = [kind for kind, count in counts.items() for _ in range(count)]
        return cls(tuple(gpu_types), tuple(server for server, size in enumerate(server_sizes) for _ in range(size)))

    def __len__(self) -> int:
        return len(self.gpu_types)

    @cached_property
    def gpus_by_type(self) -> dict[str, int]:
        """How many of each type, in the cluster's own order of types."""
        return {kind: len(workers) for kind, workers in self.workers_by_type.items()}

    @cached_property
    def workers_by_type(self) -> dict[str, tuple[int, ...]]:
        """Each type's workers, server after server."""
        distinct = dict.fromkeys(self.gpu_types)
        return {kind: tuple(at for at, other in enumerate(self.gpu_types) if other == kind) for kind in distinct}

    def types_of(self, workers: Iterable[int]) -> frozenset[str]:
        """The types among these."""
        return frozenset(self.gpu_types[worker] for worker in workers)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A job. `rates`: steps per second of the whole job on `width` GPUs of each type, 0 where it cannot run.

    `beside`: by GPU type, what part of its rate it keeps while a job of another model shares its GPUs; a model that is
    not named cannot share them. `arrival` in seconds from the start. `weight`: its priority weight.
    """

    id: str
    gpus: int
    steps: int
    rates: Mapping[str, float]
    arrival: float = 0.0
    model: str = ""
    weight: float = 1.0
    colocated_fractions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that has arrived and not ended. `seconds`: how long it has run; `attained`: GPU-seconds it has held.

    `workers`: those it had in the last round, in all its copies; empty where it had none.
    """

    spec: ReplayJob
    steps_done: int = 0
    run_seconds: float = 0.0
    attained_service: float = 0.0
    workers: tuple[int, ...] = ()

    @property
    def remaining_steps(self) -> int:
        return self.spec.steps - self.steps_done


def gang_rate(job: ReplayJob, gpu_types: Collection[str], partner: ReplayJob | None = None) -> float:
    """Steps per second on GPUs of these types: the slowest holds the others back, and the partner all of them."""
    alone = min((job.rates.get(kind, 0.0) for kind in gpu_types), default=0.0)
    if partner is None:
        return alone
    return alone * min(
        (job.colocated_fractions.get(kind, {}).get(partner.model, 0.0) for kind in gpu_types), default=0.0
    )


@dataclass(frozen=True, slots=True)
class Grant:
    """These workers, ascending, for one round, to one job or to two that share them.

    A job in several grants runs as so many copies, whose steps add up.
    """

    jobs: tuple[str, ...]
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GrantOutcome:
    """What became of a grant: seconds it kept its workers busy, of a pair the longer, and which jobs ended."""

    grant: Grant
    busy_seconds: float
    ended_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundInput:
    """One round's question. `jobs` by id, in order of arrival; `last`: what became of the last round's grants.

    `time` in seconds from the start; the round lasts `period` seconds at most. A start on other workers than in the
    last round costs `overhead` seconds of it.
    """

    round_number: int
    time: float
    period: float
    overhead: float
    jobs: Mapping[str, ActiveJob]
    workers: GpuWorkers
    previous: tuple[GrantOutcome, ...] = ()


class RoundPolicy(Protocol):
    """Who runs on which workers in the coming round. It may remember: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        """The coming round's grants. No worker is in two of them."""
