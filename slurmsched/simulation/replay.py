"""What a replay is made of: jobs, workers, the semantics of rounds, the grants of a decider, and the result.

Times are in seconds from the start of the replay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Protocol

from slurmsched.model import SynschedError
from slurmsched.simulation.results import SimulationResult


class ReplayError(SynschedError):
    """The replay cannot continue, because of an invalid grant or because some jobs never end."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RoundSemantics:
    """What a round costs and when it ends. The defaults are the rounds of Gavel's simulator."""

    period: float = 360.0
    """Seconds from one round to the next, of which the first round begins at `first_round`."""
    first_round: float = 0.0
    restart_seconds: float = 0.0
    """Seconds without work at a start or a move, at most a round; 0 where changes are for nothing."""
    exchange_seconds: float = 0.0
    """Seconds without work at the beginning of every round, in which copies exchange parameters (HadarE)."""
    leases: bool = False
    """Whether a live policy sees running jobs on their GPUs; else all jobs wait, and are placed anew each round."""
    whole_steps: bool = True
    """Whether what is left of a step at the end of a round is lost."""
    ends_within_round: bool = True
    """Whether a job ends when its work is done; else it ends, and keeps its GPUs, with the round."""
    partner_speeds_up: bool = False
    """Whether the partner of a job that ends has the GPUs to itself from then on, not only from the next round."""
    ends_with_busiest: bool = False
    """Whether a round ends with its busiest job, if that is before the period has passed."""
    ends_with_copies: bool = False
    """Whether a round ends with the first job that ends and ran as copies, but not before the seconds of a restart have
    passed: the daemon begins a full round then."""


@dataclass(frozen=True)
class GpuWorkers:
    """GPU type and server by worker index. Workers of one server are adjacent."""

    gpu_types: tuple[str, ...]
    server_indices: tuple[int, ...]

    @classmethod
    def from_gpu_counts(cls, counts: Mapping[str, int], per_server: int = 4) -> GpuWorkers:
        """Return workers on servers of one type each, with `per_server` GPUs; a type's last server may have fewer."""
        server_sizes = [
            min(per_server, count - first) for count in counts.values() for first in range(0, count, per_server)
        ]
        gpu_types = [kind for kind, count in counts.items() for _ in range(count)]
        return cls(tuple(gpu_types), tuple(server for server, size in enumerate(server_sizes) for _ in range(size)))

    def __len__(self) -> int:
        return len(self.gpu_types)

    @cached_property
    def gpus_by_type(self) -> dict[str, int]:
        """The number of GPUs by type, in the cluster's order of types."""
        return {kind: len(workers) for kind, workers in self.workers_by_type.items()}

    @cached_property
    def workers_by_type(self) -> dict[str, tuple[int, ...]]:
        """The workers by type, ordered by server."""
        distinct = dict.fromkeys(self.gpu_types)
        return {
            kind: tuple(worker for worker, other in enumerate(self.gpu_types) if other == kind) for kind in distinct
        }

    def types_of(self, workers: Iterable[int]) -> frozenset[str]:
        """Return the GPU types of the given workers."""
        return frozenset(self.gpu_types[worker] for worker in workers)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A job. `rates` are steps per second of the whole job on `gpus` GPUs by type, 0 if it cannot run there.

    `colocated_fractions` are, by GPU type and model of a partner, the part of its rate that the job keeps while they
    share GPUs; other models cannot share them. `weight` is the priority weight, `work` the seconds that it takes alone.
    """

    id: str
    gpus: int
    steps: float
    rates: Mapping[str, float] = field(default_factory=dict)
    arrival: float = 0.0
    model: str = ""
    weight: float = 1.0
    colocated_fractions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    work: float = 0.0


def gang_rate(job: ReplayJob, gpu_types: Collection[str], partner: ReplayJob | None = None) -> float:
    """Return steps per second on GPUs of these types, limited by the slowest type and reduced by the partner."""
    alone = min((job.rates.get(kind, 0.0) for kind in gpu_types), default=0.0)
    if partner is None:
        return alone
    return alone * min(
        (job.colocated_fractions.get(kind, {}).get(partner.model, 0.0) for kind in gpu_types), default=0.0
    )


@dataclass(slots=True)
class ActiveJob:
    """A job that has arrived and not ended. Only the kernel changes it.

    `remaining` is in steps, `attained_service` in GPU-seconds, `service_by_type` the same by GPU type, empty where the
    workers are not known. `workers` are those of all its copies in the last round,
    `runs` is whether it ran then. `last_run` is the end of the last round in which it ran, `start` its first start.
    """

    spec: ReplayJob
    remaining: float
    attained_service: float = 0.0
    service_by_type: dict[str, float] = field(default_factory=dict)
    workers: tuple[int, ...] = ()
    runs: bool = False
    last_run: float | None = None
    start: float | None = None
    restarts: int = 0
    migrations: int = 0

    @property
    def steps_done(self) -> float:
        return self.spec.steps - self.remaining


@dataclass(frozen=True, slots=True)
class Grant:
    """Gives workers, ascending, for one round to one job or to two jobs that share them.

    A job in several grants runs as several copies, each of which needs its `steps`. Two grants are equal if jobs and
    workers are. Workers may be left out if `rates` and `moved` are given.
    """

    jobs: tuple[str, ...]
    workers: tuple[int, ...]
    rates: tuple[float, ...] = field(default=(), compare=False)
    """Steps per second of each job beside the other; without them `gang_rate`."""
    rates_alone: tuple[float, ...] = field(default=(), compare=False)
    """The same once the other has ended; without them `rates`, and so is the rate of a job without a partner."""
    steps: tuple[float, ...] = field(default=(), compare=False)
    """The most steps of each job in this round; without them as many as there is time for."""
    moved: frozenset[str] | None = field(default=None, compare=False)
    """Of the jobs that ran in the last round, those that lose the seconds of a restart; None where an unequal grant
    is a move."""


@dataclass(frozen=True, slots=True)
class GrantOutcome:
    """The outcome of a grant: steps of each job, busy seconds of its workers (of a pair the longer), and who ended."""

    grant: Grant
    busy_seconds: float
    ended_jobs: tuple[str, ...] = ()
    steps: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundInput:
    """What a decider sees. `jobs` are by id, in order of arrival; `previous` are the outcomes of the last round."""

    round_number: int
    time: float
    semantics: RoundSemantics
    jobs: Mapping[str, ActiveJob]
    workers: GpuWorkers
    previous: tuple[GrantOutcome, ...] = ()

    @property
    def period(self) -> float:
        return self.semantics.period


class Decider(Protocol):
    """Decides which jobs run on which workers in the coming round. It may keep state: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        """Return the grants of the coming round. No worker is in two of them."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: its start and length in seconds, and its busy GPU-seconds by GPU type.

    `granted_gpus` counts GPUs by type, `running` and `waiting` count jobs. `kept_grants` equal one of the round before;
    `keepable_grants` are those of the round before whose jobs had not all ended.
    """

    time: float
    seconds: float
    busy_gpu_seconds: Mapping[str, float]
    granted_gpus: Mapping[str, int]
    running: int
    waiting: int
    kept_grants: int
    keepable_grants: int


@dataclass(frozen=True, slots=True)
class ReplayResult(SimulationResult):
    """The result of a replay: a simulation's, with its rounds and the cluster's GPUs by type."""

    records: tuple[RoundRecord, ...] = ()
    gpus_by_type: Mapping[str, int] = field(default_factory=dict)

    @property
    def end_times(self) -> dict[str, float]:
        """The end of each job that has ended."""
        return {job.job: job.end for job in self.jobs if job.end is not None}

    @property
    def makespan(self) -> float:
        """The seconds from the start to the end of the last job."""
        return max(self.end_times.values(), default=0.0)

    @property
    def jct(self) -> tuple[float, ...]:
        """The seconds from arrival to end of each job."""
        return tuple(job.jct for job in self.jobs)

    @property
    def mean_jct(self) -> float:
        return fmean(self.jct)

    @property
    def median_jct(self) -> float:
        return median(self.jct)

    @property
    def utilisation(self) -> float:
        """The busy part of all GPU-seconds from the start to the end of the last job."""
        busy = sum(sum(record.busy_gpu_seconds.values()) for record in self.records)
        total = sum(self.gpus_by_type.values()) * self.makespan
        return busy / total if total else 0.0

    def utilisation_curve(self, gpu_type: str = "") -> tuple[tuple[float, float], ...]:
        """Return the start and the busy part of the GPUs of each round, of one type or of all; then 0 at the end."""
        types = (gpu_type,) if gpu_type else tuple(self.gpus_by_type)
        gpus = sum(self.gpus_by_type[kind] for kind in types)
        busy = ((r, sum(r.busy_gpu_seconds.get(kind, 0.0) for kind in types)) for r in self.records if r.seconds)
        return (*((record.time, seconds / (gpus * record.seconds)) for record, seconds in busy), (self.makespan, 0.0))
