"""A round of the replay: workers, jobs, the input of a policy and its grants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol


@dataclass(frozen=True)
class GpuWorkers:
    """GPU type and server by worker index. Workers of one server are adjacent."""

    gpu_types: tuple[str, ...]
    server_indices: tuple[int, ...]

    @classmethod
    def from_gpu_counts(cls, counts: Mapping[str, int], per_server: int = 4) -> GpuWorkers:
        """Returns workers on servers of one type each, with `per_server` GPUs; a type's last server may have fewer."""
        server_sizes = [
            min(per_server, count - first) for count in counts.values() for first in range(0, count, per_server)
        ]
        gpu_types = [kind for kind, count in counts.items() for _ in range(count)]
        return cls(tuple(gpu_types), tuple(server for server, size in enumerate(server_sizes) for _ in range(size)))

    def __len__(self) -> int:
        return len(self.gpu_types)

    @cached_property
    def gpus_by_type(self) -> dict[str, int]:
        """Returns the number of GPUs by type, in the cluster's order of types."""
        return {kind: len(workers) for kind, workers in self.workers_by_type.items()}

    @cached_property
    def workers_by_type(self) -> dict[str, tuple[int, ...]]:
        """Returns the workers by type, ordered by server."""
        distinct = dict.fromkeys(self.gpu_types)
        return {
            kind: tuple(worker for worker, other in enumerate(self.gpu_types) if other == kind) for kind in distinct
        }

    def types_of(self, workers: Iterable[int]) -> frozenset[str]:
        """Returns the GPU types of the given workers."""
        return frozenset(self.gpu_types[worker] for worker in workers)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A job. `rates` are steps per second of the whole job on `gpus` GPUs by type, 0 if it cannot run there.

    `colocated_fractions` are, by GPU type and model of a partner, the part of its rate that the job keeps while they
    share GPUs; other models cannot share them. `arrival` is in seconds from the start, `weight` the priority weight.
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
    """A job that has arrived and not ended. `attained_service` is in GPU-seconds.

    `workers` are those of all its copies in the last round; empty if it did not run.
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
    """Returns steps per second on GPUs of these types, limited by the slowest type and reduced by the partner."""
    alone = min((job.rates.get(kind, 0.0) for kind in gpu_types), default=0.0)
    if partner is None:
        return alone
    return alone * min(
        (job.colocated_fractions.get(kind, {}).get(partner.model, 0.0) for kind in gpu_types), default=0.0
    )


@dataclass(frozen=True, slots=True)
class Grant:
    """Gives workers, ascending, for one round to one job or to two jobs that share them.

    A job in several grants runs as several copies, whose steps add up.
    """

    jobs: tuple[str, ...]
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GrantOutcome:
    """The outcome of a grant: busy seconds of its workers, of a pair the longer, and the jobs that ended."""

    grant: Grant
    busy_seconds: float
    ended_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundInput:
    """The input of one round. `jobs` are by id, in order of arrival; `previous` are the outcomes of the last round.

    `time` is in seconds from the start; the round lasts at most `period` seconds. A grant that was not in the last
    round loses `overhead` seconds.
    """

    round_number: int
    time: float
    period: float
    overhead: float
    jobs: Mapping[str, ActiveJob]
    workers: GpuWorkers
    previous: tuple[GrantOutcome, ...] = ()


class RoundPolicy(Protocol):
    """Decides which jobs run on which workers in the coming round. It may keep state: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        """Returns the grants of the coming round. No worker is in two of them."""
