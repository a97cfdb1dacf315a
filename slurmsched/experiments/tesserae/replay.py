"""The jobs of a replay, and their rates when two of them share GPUs.

Replays jobs on equal nodes of one GPU type, round by round (Tesserae, section 5).

A job may end within a round, and its partner then has the GPUs to itself. A job that starts or moves loses seconds; a
job that continues loses nothing, even with another partner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.experiments.tesserae.round import TesseraePlan
from slurmsched.knowledge import Knowledge
from slurmsched.policies.policies import policy, schedules_shards
from slurmsched.policies.tesserae.migration import NO_JOB, PlacementPlan
from slurmsched.policies.tesserae.packing import PairRates, best_edges
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import (
    LivePolicy,
    SubmissionForm,
    daemon_rounds,
    knowledge_of,
    nodes_of,
    submissions,
)
from slurmsched.simulation.replay import GpuWorkers, Grant, ReplayJob, ReplayResult, RoundInput, RoundSemantics
from slurmsched.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival. `seconds` is the run time alone, `job_type` the index of the model in `models`.

    `relative_rates[k, l]` is the part of its rate that a job of type k keeps beside one of type l, 0 if they do not fit
    together or were not measured. It is multiplied by `wide_pair_factor` for jobs on several GPUs.
    """

    arrival: Floats
    seconds: Floats
    gpus: Ints
    job_type: Ints
    models: tuple[str, ...]
    relative_rates: Floats
    wide_pair_factor: float = 1.0

    def __len__(self) -> int:
        return len(self.arrival)

    def speeds(self, job: Ints, partner: Ints) -> Floats:
        """Returns each job's rate relative to running alone. `partner` is its partner's index in `job`, or NO_JOB."""
        job_type = self.job_type[job]
        colocated = self.relative_rates[job_type, job_type[partner]] * np.where(
            self.gpus[job] > 1, self.wide_pair_factor, 1.0
        )
        return np.where(partner != NO_JOB, colocated, 1.0)


def workload_from_trace(trace: Trace, knowledge: Knowledge, gpu_type: str) -> Workload:
    """Returns the trace's jobs, whose models must be known, on GPUs of one type."""
    models = tuple(sorted({job.model for job in trace.jobs}))
    type_index = {model: index for index, model in enumerate(models)}
    return Workload(
        arrival=np.array([job.arrival for job in trace.jobs]),
        seconds=np.array([job.duration for job in trace.jobs]),
        gpus=np.array([job.gpus for job in trace.jobs], dtype=np.int64),
        job_type=np.array([type_index[job.model] for job in trace.jobs], dtype=np.int64),
        models=models,
        relative_rates=colocated_fractions(knowledge, models, gpu_type),
    )


def colocated_fractions(knowledge: Knowledge, models: Sequence[str], gpu_type: str) -> Floats:
    """Returns the part of its rate that a model keeps beside a partner; 0 for both if it is 0 for either."""
    by_model = [knowledge.models[model].scaling[gpu_type].beside for model in models]
    fractions = np.array([[beside.get(other, 0.0) for other in models] for beside in by_model], dtype=np.float64)
    return np.where((fractions > 0) & (fractions.T > 0), fractions, 0.0)


def pair_weights(relative_rates: Floats, min_rate: float) -> Floats:
    """Returns the edge weights for packing. Pairs with a combined rate of at most `min_rate` have no edge."""
    rates: list[list[PairRates]] = [
        [{("", ""): (float(rate), float(other))} for rate, other in zip(row, column, strict=True)]
        for row, column in zip(relative_rates, relative_rates.T, strict=True)
    ]
    return best_edges(rates, min_rate)[1]


PERIOD: Final = 360.0
GPU_TYPE: Final = "v100"
"""The type of all GPUs, of which durations are."""


def running_partners(placement: PlacementPlan) -> tuple[Ints, Ints]:
    """Returns the running jobs, and the index of each one's partner among them or NO_JOB."""
    pairs = np.unique(placement.jobs, axis=0).reshape(-1, 2)
    job = np.unique(pairs[pairs != NO_JOB])
    partner: Ints = np.full(len(job), NO_JOB)
    shared = pairs[pairs[:, 1] != NO_JOB]
    first, second = np.searchsorted(job, shared[:, 0]), np.searchsorted(job, shared[:, 1])
    partner[first], partner[second] = second, first
    return job, partner


@dataclass(frozen=True, slots=True)
class ReplayState:
    """The input of a policy. `remaining` is in seconds of work and `attained_service` in GPU-seconds, by job.

    `active` are the jobs in the cluster in order of arrival, `previous` is the last round's placement.
    """

    time: float
    period: float
    workload: Workload
    node_gpus: Ints
    active: Ints
    remaining: Floats
    attained_service: Floats
    previous: PlacementPlan


class ReplayPolicy(Protocol):
    """A policy of a replay. It may keep state: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, state: ReplayState) -> TesseraePlan: ...


@dataclass(slots=True)
class TesseraeDecider:
    """A `ReplayPolicy` as the kernel's decider; jobs are numbered in order of arrival."""

    workload: Workload
    node_gpus: Ints
    policy: ReplayPolicy
    _previous: PlacementPlan = field(default_factory=lambda: PlacementPlan.from_rows(()))

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        workload, jobs = self.workload, round_input.jobs
        active = np.fromiter(map(int, jobs), dtype=np.int64, count=len(jobs))
        remaining, attained_service = np.zeros(len(workload)), np.zeros(len(workload))
        remaining[active] = [job.remaining for job in jobs.values()]
        attained_service[active] = [job.attained_service for job in jobs.values()]
        state = ReplayState(
            round_input.time,
            round_input.period,
            workload,
            self.node_gpus,
            active,
            remaining,
            attained_service,
            self._previous,
        )
        plan = self.policy.decide(state)
        self._previous = plan.placement
        moved = frozenset(str(job) for job in plan.migrated)
        job, partner = running_partners(plan.placement)
        speeds = workload.speeds(job, partner).tolist()
        grants = list[Grant]()
        for index, (number, other) in enumerate(zip(job.tolist(), partner.tolist(), strict=True)):
            if other == NO_JOB:
                grants.append(Grant((str(number),), (), (1.0,), moved=moved))
            elif index < other:
                rates = (speeds[index], speeds[other])
                grants.append(Grant((str(number), str(job[other])), (), rates, (1.0, 1.0), moved=moved))
        return grants


def workload_jobs(workload: Workload) -> list[ReplayJob]:
    """Returns the jobs, whose steps are seconds of work alone, by their numbers in order of arrival."""
    columns = (workload.arrival.tolist(), workload.seconds.tolist(), workload.gpus.tolist(), workload.job_type.tolist())
    return [
        ReplayJob(str(number), gpus, seconds, arrival=arrival, model=workload.models[kind], work=seconds)
        for number, (arrival, seconds, gpus, kind) in enumerate(zip(*columns, strict=True))
    ]


def replay_live(workload: Workload, node_gpus: Ints, name: str, order: str, *, overhead: float = 60.0) -> ReplayResult:
    """Runs all jobs to their end under the daemon's policy of this name.

    Under a policy that schedules shards one-GPU jobs ask for half of a GPU, so that two of them may share one.
    """
    shards = schedules_shards(name)
    beside = [dict(zip(workload.models, rates, strict=True)) for rates in workload.relative_rates.tolist()]
    jobs = [
        replace(job, rates={GPU_TYPE: 1.0}, colocated_fractions={GPU_TYPE: beside[kind]})
        for job, kind in zip(workload_jobs(workload), workload.job_type.tolist(), strict=True)
    ]
    workers = _gpu_workers(node_gpus)
    submitted = submissions(jobs, lambda job: job.work, SubmissionForm(0, shards, int(node_gpus.max())))
    nodes = nodes_of(workers, shards=2 if shards else 0)
    live = LivePolicy(policy(name, order), nodes, submitted, knowledge_of(jobs, GPU_TYPE))
    return replay(jobs, workers, live, daemon_rounds(overhead, PERIOD, whole_steps=False))


def _gpu_workers(node_gpus: Ints) -> GpuWorkers:
    servers = np.repeat(np.arange(len(node_gpus)), node_gpus).tolist()
    return GpuWorkers((GPU_TYPE,) * len(servers), tuple(servers))


def replay_workload(
    workload: Workload, node_gpus: Ints, decides: ReplayPolicy, *, period: float = PERIOD, overhead: float = 60.0
) -> ReplayResult:
    """Runs all jobs to their end. `node_gpus` are the GPUs of each node; times are in seconds.

    Raises ReplayError for a policy that never runs some jobs.
    """
    rounds = RoundSemantics(period, restart_seconds=overhead, whole_steps=False, partner_speeds_up=True)
    decider = TesseraeDecider(workload, node_gpus, decides)
    return replay(workload_jobs(workload), _gpu_workers(node_gpus), decider, rounds)
