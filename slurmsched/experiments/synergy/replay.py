"""Replays a list of jobs in rounds. Every round places all jobs anew; there are no leases and restarts are free.

A round with the same jobs in the same order (section 2.2) as the one before has the same result and is not computed
again. In arrival order all such rounds are skipped at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.synergy.jobs import IterationJob, ReplayScenario
from slurmsched.experiments.synergy.mechanisms import MECHANISMS, ReplayMechanism, RoundSpeed
from slurmsched.experiments.synergy_allocation.problem import SynergyVariant
from slurmsched.simulation import JobResult, SimulationResult


@dataclass(slots=True)
class JobProgress:
    """A job's progress. `service` is its run time in seconds, `expected_speedup` that of `RoundSpeed`, `last_run` the
    end of its last round. A `starved` job once waited so long that it goes before all others."""

    job: IterationJob
    iterations_done: float = 0.0
    service: float = 0.0
    expected_speedup: float = 1.0
    last_run: float = -1.0
    starved: bool = False

    @property
    def remaining_seconds(self) -> float:
        """Returns the expected remaining run time in seconds."""
        return self.job.model.iteration_seconds * (self.job.iterations - self.iterations_done) / self.expected_speedup


def _fifo(progress: JobProgress, _now: float) -> tuple[float, ...]:
    return (progress.job.arrival,)


def _srtf(progress: JobProgress, _now: float) -> tuple[float, ...]:
    return (-progress.starved, progress.remaining_seconds, progress.job.arrival)


def _las(progress: JobProgress, _now: float) -> tuple[float, ...]:
    return (-progress.starved, progress.service * progress.job.gpus, progress.job.arrival)


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
"""Sort keys of the orders, ascending, given the time in seconds."""


_STARVATION_AFTER: Final = 1000 * 3600.0
"""Seconds without running after which a job goes before all others (the authors' guard against starvation)."""

_STATIC_ARRIVALS_WITHIN: Final = 1.0
"""If all jobs arrive within this many seconds, the first round is at this time."""

_ROUNDING: Final = 1e-9


def replay_trace(
    scenario: ReplayScenario,
    mechanism: str,
    order: str,
    variant: SynergyVariant,
    *,
    period: float = 300.0,
    window: tuple[int, int] | None = None,
) -> SimulationResult:
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
    state = _ReplayState(scenario, mechanism, order, variant, period)
    state.run(*(window or (0, len(scenario.jobs))))
    return SimulationResult(
        policy=mechanism,
        order=order,
        trace="replay",
        seed=0,
        jobs=tuple(
            JobResult(
                job=str(job.id),
                arrival=job.arrival,
                work=job.iterations * job.model.iteration_seconds,
                gpus=job.gpus,
                model=job.model.name,
                end=end,
                state="UNFINISHED" if end is None else "COMPLETED",
            )
            for job, end in zip(scenario.jobs, state.end_times, strict=True)
        ),
        samples=(),
        total_gpus=scenario.server_count * scenario.gpus_per_server,
        total_cpus=scenario.server_count * scenario.cpus_per_server,
        total_memory=scenario.server_count * scenario.memory_per_server * 1024,
        rounds=state.rounds,
        decisions=tuple(state.decisions),
        wall_s=time.perf_counter() - began,
        cpu_s=time.process_time() - cpu,
        window=window,
    )


class _ReplayState:
    """The state between two rounds. Jobs are given by their index in the scenario."""

    def __init__(
        self, scenario: ReplayScenario, mechanism: str, order: str, variant: SynergyVariant, period: float
    ) -> None:
        self.scenario, self.variant, self.period = scenario, variant, period
        self.sort_key, self.is_fifo = ORDERS[order], order == "fifo"
        self.offers_all_jobs = mechanism == "greedy" and order != "las"
        self.widest_first = mechanism == "tune" and order == "las" and not variant.sorts_by_demand
        self.mechanism: ReplayMechanism = MECHANISMS[mechanism](scenario, variant)
        self.progress = [
            JobProgress(job, expected_speedup=self.mechanism.expected_speedup(index))
            for index, job in enumerate(scenario.jobs)
        ]
        self.end_times: list[float | None] = [None] * len(scenario.jobs)
        self.runnable: list[int] = []
        self.speeds: Mapping[int, RoundSpeed] = {}
        self.next_arrival = 0
        self.rounds = 0
        self.decisions: list[float] = []

    def run(self, first: int, end: int) -> None:
        """Runs until the jobs from `first` to before `end` have ended."""
        decided_for: list[int] = []
        now = self._first_round_time()
        while any(end is None for end in self.end_times[first:end]):
            self._admit_arrivals(now)
            if not self.runnable:
                now = self._next_round_after(self.scenario.jobs[self.next_arrival].arrival, now)
                continue
            self.runnable.sort(key=lambda index: self.sort_key(self.progress[index], now))
            selected = self._select_jobs()
            if selected != decided_for:
                self._decide(selected)
                decided_for = selected
            self._mark_starved(now)
            count = self._identical_rounds(now)
            self._advance(now, count)
            self.rounds += count
            now += count * self.period

    def _first_round_time(self) -> float:
        arrivals = [job.arrival for job in self.scenario.jobs]
        if not self.variant.whole_iterations:
            return arrivals[0]
        return (
            _STATIC_ARRIVALS_WITHIN
            if arrivals[-1] < _STATIC_ARRIVALS_WITHIN
            else self.period * ceil(arrivals[0] / self.period)
        )

    def _next_round_after(self, arrival: float, now: float) -> float:
        """Returns the time of the first round after an arrival on an empty cluster."""
        return now + self.period * max(1, ceil((arrival - now) / self.period))

    def _admit_arrivals(self, now: float) -> None:
        jobs = self.scenario.jobs
        while self.next_arrival < len(jobs) and jobs[self.next_arrival].arrival <= now:
            self.runnable.append(self.next_arrival)
            self.next_arrival += 1

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

    def _decide(self, selected: Sequence[int]) -> None:
        began = time.perf_counter()
        for index in self.speeds:
            self.progress[index].expected_speedup = self.mechanism.expected_speedup(index)
        self.speeds = self.mechanism.round_speeds(selected)
        for index, pace in self.speeds.items():
            self.progress[index].expected_speedup = pace.expected
        self.decisions.append(time.perf_counter() - began)

    def _mark_starved(self, now: float) -> None:
        if self.is_fifo or now - self.scenario.jobs[0].arrival <= _STARVATION_AFTER:
            return
        for index in self.runnable:
            progress = self.progress[index]
            since = progress.job.arrival if progress.last_run < 0 else progress.last_run
            progress.starved = progress.starved or now - since > _STARVATION_AFTER

    def _iterations_per_round(self, index: int) -> float:
        """Returns the iterations that a running job does in a round."""
        seconds = self.scenario.jobs[index].model.iteration_seconds / self.speeds[index].rate
        return floor(self.period / seconds) if self.variant.whole_iterations else self.period / seconds

    def _identical_rounds(self, now: float) -> int:
        """Returns the number of rounds from this one on with the same result: in arrival order all until a job ends or
        arrives."""
        if not self.is_fifo:
            return 1
        steps = [(self.progress[index], self._iterations_per_round(index)) for index in self.speeds]
        rounds = [ceil((p.job.iterations - p.iterations_done) / each - _ROUNDING) for p, each in steps if each]
        if self.next_arrival < len(self.scenario.jobs):
            rounds.append(ceil((self.scenario.jobs[self.next_arrival].arrival - now) / self.period))
        if not rounds:
            stuck = self.scenario.jobs[next(iter(self.speeds))]
            raise ExperimentError(f"job {stuck.id} never ends: one of its iterations takes longer than a round")
        return max(1, min(rounds))

    def _advance(self, now: float, count: int) -> None:
        for index, pace in self.speeds.items():
            progress, per_round = self.progress[index], self._iterations_per_round(index)
            before, total = progress.iterations_done, progress.job.iterations
            progress.iterations_done = min(total, before + count * per_round)
            progress.service += count * self.period
            progress.last_run = now + count * self.period
            if progress.iterations_done < total - _ROUNDING:
                continue
            self.end_times[index] = progress.last_run
            if not self.variant.whole_iterations:
                self.end_times[index] = now + (total - before) * progress.job.model.iteration_seconds / pace.rate
            self.runnable.remove(index)
