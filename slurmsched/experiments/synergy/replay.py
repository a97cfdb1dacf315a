"""Replays a list of jobs in rounds. Every round places all jobs anew; there are no leases and restarts are free.

A round with the same jobs in the same order (section 2.2) as the one before has the same result and is not computed
again. In arrival order all such rounds are skipped at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.synergy.allocation import SynergyVariant
from slurmsched.experiments.synergy.jobs import MECHANISMS, IterationJob, ReplayMechanism, ReplayScenario, RoundSpeed
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.published import SYNERGY_MODEL_NAMES
from slurmsched.model import NodeAllocation, Resources
from slurmsched.policies.stages import Policy
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import LivePolicy, SubmissionForm, nodes_of, submissions
from slurmsched.simulation.replay import (
    ActiveJob,
    GpuWorkers,
    Grant,
    ReplayJob,
    ReplayResult,
    RoundInput,
    RoundSemantics,
)


@dataclass(slots=True)
class JobProgress:
    """A job with its state in the kernel. `expected_speedup` is that of `RoundSpeed`. A `starved` job once waited so
    long that it goes before all others."""

    job: IterationJob
    active: ActiveJob
    expected_speedup: float
    starved: bool = False

    @property
    def remaining_seconds(self) -> float:
        """Returns the expected remaining run time in seconds."""
        return self.job.model.iteration_seconds * self.active.remaining / self.expected_speedup


def _fifo(progress: JobProgress, _now: float) -> tuple[float, ...]:
    return (progress.job.arrival,)


def _srtf(progress: JobProgress, _now: float) -> tuple[float, ...]:
    return (-progress.starved, progress.remaining_seconds, progress.job.arrival)


def _las(progress: JobProgress, _now: float) -> tuple[float, ...]:
    return (-progress.starved, progress.active.attained_service, progress.job.arrival)


def _ftf(progress: JobProgress, now: float) -> tuple[float, ...]:
    """Sorts by time in the cluster over time alone, the lowest first, as in the authors' simulator."""
    job = progress.job
    rho = (now - job.arrival + progress.remaining_seconds) / (job.model.iteration_seconds * job.iterations)
    return (-progress.starved, rho, job.arrival)


ORDERS: Final[Mapping[str, Callable[[JobProgress, float], tuple[float, ...]]]] = {
    "fifo": _fifo,
    "srtf": _srtf,
    "las": _las,
    "ftf": _ftf,
}
"""Sort keys of the orders, ascending, given the time in seconds: what `_OrderColumns` computes of all jobs at once."""


class _OrderColumns:
    """What the orders sort by, of all jobs of a scenario by index. Only jobs that ran, came or starved have changed."""

    def __init__(self, jobs: Sequence[IterationJob]) -> None:
        self._arrival = np.array([job.arrival for job in jobs], dtype=float)
        self._alone = np.array([job.model.iteration_seconds * job.iterations for job in jobs], dtype=float)
        self._remaining, self._attained, self._starved = np.zeros((3, len(jobs)))

    def update(self, index: int, progress: JobProgress) -> None:
        self._remaining[index] = progress.remaining_seconds
        self._attained[index] = progress.active.attained_service
        self._starved[index] = progress.starved

    def sort(self, order: str, runnable: Sequence[int], now: float) -> list[int]:
        """Returns these indices in the order; equal ones stay as they are."""
        at = np.array(runnable, dtype=int)
        arrival, remaining = self._arrival[at], self._remaining[at]
        if order == "ftf":
            value = (now - arrival + remaining) / self._alone[at]
        else:
            value = remaining if order == "srtf" else self._attained[at]
        ordered: list[int] = at[np.lexsort((arrival, value, -self._starved[at]))].tolist()
        return ordered


_STARVATION_AFTER: Final = 1000 * 3600.0
"""Seconds without running after which a job goes before all others (the authors' guard against starvation)."""

_NO_JOBS: Final = frozenset[str]()

_STATIC_ARRIVALS_WITHIN: Final = 1.0
"""If all jobs arrive within this many seconds, the first round is at this time."""


def replay_trace(
    scenario: ReplayScenario,
    mechanism: str,
    order: str,
    variant: SynergyVariant,
    *,
    period: float = 300.0,
    window: tuple[int, int] | None = None,
) -> ReplayResult:
    """Runs until every job, or every job with an index in `window`, has ended. Rounds are `period` seconds apart.

    Raises ExperimentError for an unknown mechanism or order, and for a job with more GPUs than the cluster.
    """
    for kind, name, known in (("mechanism", mechanism, MECHANISMS), ("order", order, ORDERS)):
        if name not in known:
            raise ExperimentError(f"there is no {kind} '{name}'; {kind}s: {', '.join(known)}")
    too_wide = next((job for job in scenario.jobs if job.gpus > scenario.server_count * scenario.gpus_per_server), None)
    if too_wide is not None:
        raise ExperimentError(
            f"job {too_wide.id} asks for {too_wide.gpus} GPUs, but the cluster has"
            f" {scenario.server_count * scenario.gpus_per_server}"
        )
    began, cpu = time.perf_counter(), time.process_time()
    fair_cpus, fair_memory = scenario.fair_share
    gpus = scenario.server_count * scenario.gpus_per_server
    run = replay(
        replay_jobs(scenario),
        GpuWorkers.from_gpu_counts({"gpu": gpus}, scenario.gpus_per_server),
        SynergyDecider(scenario, mechanism, order, variant),
        round_semantics(scenario, variant, period),
        window=window,
        same_until_change=order == "fifo",
    )
    return replace(
        run,
        order=order,
        total_cpus=gpus * fair_cpus,
        total_memory=gpus * fair_memory * 1024,
        wall_s=time.perf_counter() - began,
        cpu_s=time.process_time() - cpu,
    )


def replay_jobs(scenario: ReplayScenario) -> list[ReplayJob]:
    """Returns the jobs for the kernel; a step is an iteration."""
    return [
        ReplayJob(
            str(job.id),
            job.gpus,
            job.iterations,
            arrival=job.arrival,
            model=job.model.name,
            work=job.iterations * job.model.iteration_seconds,
        )
        for job in scenario.jobs
    ]


def round_semantics(scenario: ReplayScenario, variant: SynergyVariant, period: float) -> RoundSemantics:
    """Returns the rounds of the authors' simulator, in which jobs end with a round, or of the paper's text."""
    first, last = scenario.jobs[0].arrival, scenario.jobs[-1].arrival
    if not variant.whole_iterations:
        return RoundSemantics(period, first_round=first, whole_steps=False)
    is_static = last < _STATIC_ARRIVALS_WITHIN
    first_round = _STATIC_ARRIVALS_WITHIN if is_static else period * ceil(first / period)
    return RoundSemantics(period, first_round=first_round, ends_within_round=False)


_GPU_TYPE: Final = "v100"
_MIB_PER_GB: Final = 1024


def replay_live(
    scenario: ReplayScenario,
    knowledge: Knowledge,
    policy: Policy,
    rounds: RoundSemantics,
    *,
    window: tuple[int, int] | None = None,
) -> ReplayResult:
    """Runs all jobs, or those of the window, under a policy of the daemon, by the speeds of the matrices. Raises
    ReplayError."""
    gpus, by_id = scenario.server_count * scenario.gpus_per_server, {str(job.id): job for job in scenario.jobs}
    fair_cpus, fair_memory = scenario.fair_share

    def rate(job: ReplayJob, allocations: Sequence[NodeAllocation], _partner: ReplayJob | None) -> float:
        model = by_id[job.id].model
        per_gpu = [
            (share.resources.cpus / share.resources.gpus, share.resources.memory / _MIB_PER_GB / share.resources.gpus)
            for share in allocations
        ]
        slowest = min(model.matrix.speed_at(cpus, memory) for cpus, memory in per_gpu)
        return slowest / model.matrix.speed_at(*scenario.fair_share) / model.iteration_seconds

    jobs = [replace(job, model=SYNERGY_MODEL_NAMES.get(job.model, job.model)) for job in replay_jobs(scenario)]
    form = SubmissionForm(0, False, scenario.gpus_per_server, round(fair_cpus), round(fair_memory * _MIB_PER_GB))
    workers = GpuWorkers.from_gpu_counts({_GPU_TYPE: gpus}, scenario.gpus_per_server)
    node = Resources(
        scenario.gpus_per_server, round(scenario.cpus_per_server), round(scenario.memory_per_server * _MIB_PER_GB)
    )
    nodes = tuple(replace(server, total=node) for server in nodes_of(workers))
    submitted = submissions(jobs, lambda job: job.work, form)
    return replay(jobs, workers, LivePolicy(policy, nodes, submitted, knowledge, rate), rounds, window=window)


class SynergyDecider:
    """One of Synergy's mechanisms, or a baseline, over the jobs that the order offers it.

    Jobs are given by their index in the scenario.
    """

    def __init__(self, scenario: ReplayScenario, mechanism: str, order: str, variant: SynergyVariant) -> None:
        self.name = mechanism
        self.scenario, self.variant = scenario, variant
        self.order, self.is_fifo = order, order == "fifo"
        self.offers_all_jobs = mechanism == "greedy" and order != "las"
        self.widest_first = mechanism == "tune" and order == "las" and not variant.sorts_by_demand
        self.mechanism: ReplayMechanism = MECHANISMS[mechanism](scenario, variant)
        self.progress: dict[int, JobProgress] = {}
        self.runnable: list[int] = []
        self.speeds: Mapping[int, RoundSpeed] = {}
        self.grants: list[Grant] = []
        self._columns = _OrderColumns(scenario.jobs)
        self._changed: set[int] = set()
        self._decided_for: list[int] = []
        self._grant_of: dict[tuple[int, float], Grant] = {}
        self._known = 0
        self._index_of = {str(job.id): index for index, job in enumerate(scenario.jobs)}

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        self._update_runnable(round_input)
        if not self.is_fifo:  # they are kept as they arrived
            for index in self._changed.union(self.speeds):
                self._columns.update(index, self.progress[index])
            self._changed.clear()
            self.runnable = self._columns.sort(self.order, self.runnable, round_input.time)
        selected = self._select_jobs()
        if selected != self._decided_for:
            self._decide(selected, round_input.period)
            self._decided_for = selected
        self._mark_starved(round_input.time)
        return self.grants

    def _update_runnable(self, round_input: RoundInput) -> None:
        """Add the jobs that have arrived, and remove those that have ended."""
        jobs = self.scenario.jobs
        if ended := {self._index_of[job] for outcome in round_input.previous for job in outcome.ended_jobs}:
            self.runnable = [index for index in self.runnable if index not in ended]
        while self._known < len(jobs) and jobs[self._known].arrival <= round_input.time:
            job, expected = jobs[self._known], self.mechanism.expected_speedup(self._known)
            self.progress[self._known] = JobProgress(job, round_input.jobs[str(job.id)], expected)
            self.runnable.append(self._known)
            self._changed.add(self._known)
            self._known += 1

    def _select_jobs(self) -> list[int]:
        """Returns the jobs to place: in order, those for which GPUs are left, regardless of CPUs and memory (section
        4.2). Greedy gets all jobs, since it may skip jobs for lack of CPUs or memory."""
        if self.offers_all_jobs:
            return list(self.runnable)
        free, selected = self.scenario.server_count * self.scenario.gpus_per_server, list[int]()
        for index in self.runnable:
            gpus = self.scenario.jobs[index].gpus
            if gpus <= free:
                selected.append(index)
                free -= gpus
                if not free:
                    break
        if self.widest_first:
            selected.sort(key=lambda index: -self.scenario.jobs[index].gpus)
        return selected

    def _decide(self, selected: Sequence[int], period: float) -> None:
        for index in self.speeds:
            self.progress[index].expected_speedup = self.mechanism.expected_speedup(index)
            self._changed.add(index)
        self.speeds = self.mechanism.round_speeds(selected)
        self.grants = []
        for index, pace in self.speeds.items():
            self.progress[index].expected_speedup = pace.expected
            if (index, pace.rate) not in self._grant_of:
                self._grant_of[index, pace.rate] = self._grant(self.scenario.jobs[index], pace.rate, period)
            self.grants.append(self._grant_of[index, pace.rate])

    def _grant(self, job: IterationJob, rate: float, period: float) -> Grant:
        seconds = job.model.iteration_seconds / rate
        # As the authors divide, so that no iteration is lost to rounding.
        steps = (floor(period / seconds),) if self.variant.whole_iterations else ()
        return Grant((str(job.id),), (), (1 / seconds,), steps=steps, moved=_NO_JOBS)

    def _mark_starved(self, now: float) -> None:
        if self.is_fifo or now - self.scenario.jobs[0].arrival <= _STARVATION_AFTER:
            return
        for index in self.runnable:
            progress = self.progress[index]
            since = progress.job.arrival if progress.active.last_run is None else progress.active.last_run
            if not progress.starved and now - since > _STARVATION_AFTER:
                progress.starved = True
                self._changed.add(index)
