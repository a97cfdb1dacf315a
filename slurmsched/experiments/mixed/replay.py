"""Replays jobs on several GPU types, round by round, as the simulators of Gavel and Hadar do.

A round ends when its slowest job has done its steps. A job that ends earlier gets its own end time, but its GPUs are
free only at the end of the round. Arrivals are seen in the next round. Equal inputs give equal results.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter
from typing import Final

from slurmsched.experiments.mixed.problem import (
    ActiveJob,
    GpuWorkers,
    Grant,
    GrantOutcome,
    ReplayJob,
    RoundInput,
    RoundPolicy,
    gang_rate,
)
from slurmsched.model import SynschedError
from slurmsched.model.reasons import pluralise


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: its start and length in seconds, and its busy GPU-seconds by GPU type.

    `granted_gpus` counts GPUs by type, `running` and `waiting` count jobs. `kept_grants` have the same workers and jobs
    as in the round before; `keepable_grants` are those of the round before whose jobs had not all ended.
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
class ReplayResult:
    """The result of a replay. `end_times` are in seconds from the start, by job."""

    policy: str
    jobs: tuple[ReplayJob, ...]
    end_times: Mapping[str, float]
    gpus_by_type: Mapping[str, int]
    rounds: tuple[RoundRecord, ...]
    decision_seconds: tuple[float, ...]
    """Seconds of each decision."""

    @property
    def makespan(self) -> float:
        """Returns the seconds from the start to the end of the last job."""
        return max(self.end_times.values(), default=0.0)

    @property
    def jct(self) -> tuple[float, ...]:
        """Returns the seconds from arrival to end of each job."""
        return tuple(self.end_times[work.id] - work.arrival for work in self.jobs)

    @property
    def mean_jct(self) -> float:
        return fmean(self.jct)

    @property
    def median_jct(self) -> float:
        return median(self.jct)

    @property
    def utilisation(self) -> float:
        """Returns the busy part of all GPU-seconds from the start to the end of the last job."""
        busy = sum(sum(record.busy_gpu_seconds.values()) for record in self.rounds)
        total = sum(self.gpus_by_type.values()) * self.makespan
        return busy / total if total else 0.0

    @property
    def utilisation_curve(self) -> tuple[tuple[float, float], ...]:
        """Returns the start and the busy part of all GPUs of each round, and 0 at the end of the last job."""
        gpus = sum(self.gpus_by_type.values())
        curve = tuple((r.time, sum(r.busy_gpu_seconds.values()) / (gpus * r.seconds)) for r in self.rounds if r.seconds)
        return (*curve, (self.makespan, 0.0))

    def utilisation_curve_of(self, gpu_type: str) -> tuple[tuple[float, float], ...]:
        """Returns `utilisation_curve` for the GPUs of one type."""
        gpus = self.gpus_by_type[gpu_type]
        curve = tuple(
            (r.time, r.busy_gpu_seconds.get(gpu_type, 0.0) / (gpus * r.seconds)) for r in self.rounds if r.seconds
        )
        return (*curve, (self.makespan, 0.0))


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """Steps of all a job's copies in a round, and when the last ended, in seconds from the start of the round."""

    steps: int
    finished_after: float


@dataclass(frozen=True, slots=True)
class _JobCopy:
    """One job of one grant. It starts after `delay` seconds and does at most `max_steps` steps this round."""

    grant_index: int
    rate: float
    delay: float
    max_steps: int

    @property
    def seconds(self) -> float:
        return self.delay + (self.max_steps / self.rate if self.rate else 0.0)


def serve_grants(
    round_input: RoundInput, grants: Sequence[Grant]
) -> tuple[tuple[GrantOutcome, ...], dict[str, RoundProgress]]:
    """Returns the outcome of each grant, and the progress of each job that ran. Steps are integers."""
    copies = defaultdict[str, list[_JobCopy]](list)
    for copy, job in _job_copies(round_input, grants):
        copies[job].append(copy)
    busy, ended_jobs = [0.0] * len(grants), defaultdict[int, list[str]](list)
    progress = dict[str, RoundProgress]()
    for job, job_copies in copies.items():
        remaining = round_input.jobs[job].remaining_steps
        max_steps = sum(copy.max_steps for copy in job_copies)
        ends = max_steps >= remaining
        finished_after = _finish_time(job_copies, remaining) if ends else max(copy.seconds for copy in job_copies)
        progress[job] = RoundProgress(min(max_steps, remaining), finished_after)
        for copy in job_copies:
            busy[copy.grant_index] = max(busy[copy.grant_index], min(copy.seconds, finished_after))
            if ends:
                ended_jobs[copy.grant_index].append(job)
    return tuple(GrantOutcome(grant, busy[i], tuple(ended_jobs[i])) for i, grant in enumerate(grants)), progress


def unfinished_jobs(
    jobs: Mapping[str, ActiveJob], outcomes: Sequence[GrantOutcome], progress: Mapping[str, RoundProgress]
) -> dict[str, ActiveJob]:
    """Returns the jobs that have not ended, with their state at the start of the next round."""
    workers, attained_service = defaultdict[str, list[int]](list), defaultdict[str, float](float)
    for outcome in outcomes:
        for job in outcome.grant.jobs:
            workers[job] += outcome.grant.workers
            attained_service[job] += outcome.busy_seconds * len(outcome.grant.workers)
    unfinished = dict[str, ActiveJob]()
    for name, active in jobs.items():
        job_progress = progress.get(name)
        if job_progress is None:
            unfinished[name] = (
                ActiveJob(active.spec, active.steps_done, active.run_seconds, active.attained_service)
                if active.workers
                else active
            )
        elif job_progress.steps < active.remaining_steps:
            unfinished[name] = ActiveJob(
                active.spec,
                active.steps_done + job_progress.steps,
                active.run_seconds + job_progress.finished_after,
                active.attained_service + attained_service[name],
                tuple(sorted(workers[name])),
            )
    return unfinished


def _job_copies(round_input: RoundInput, grants: Sequence[Grant]) -> Iterator[tuple[_JobCopy, str]]:
    previous_grants = {outcome.grant for outcome in round_input.previous}
    for grant_index, grant in enumerate(grants):
        gpu_types = round_input.workers.types_of(grant.workers)
        delay = 0.0 if grant in previous_grants else min(round_input.overhead, round_input.period)
        for job in grant.jobs:
            partner = _partner(grant, job, round_input.jobs)
            speed = gang_rate(round_input.jobs[job].spec, gpu_types, partner)
            yield _JobCopy(grant_index, speed, delay, int(speed * (round_input.period - delay))), job


def _partner(grant: Grant, job: str, jobs: Mapping[str, ActiveJob]) -> ReplayJob | None:
    return next((jobs[other].spec for other in grant.jobs if other != job), None)


def _finish_time(copies: Sequence[_JobCopy], steps: int) -> float:
    """Returns when all copies together have done the steps: the minimum over n for the first n copies to start."""
    speed = head = 0.0
    soonest = float("inf")
    for copy in sorted(copies, key=lambda copy: copy.delay):
        speed += copy.rate
        head += copy.rate * copy.delay
        if speed:
            soonest = min(soonest, (steps + head) / speed)
    return soonest


_MAX_IDLE_ROUNDS: Final = 200
"""Consecutive rounds without progress, while jobs wait and none will arrive, after which the replay fails."""


class ReplayError(SynschedError):
    """The replay cannot continue, because a policy made an invalid grant or never runs some jobs."""


def replay_rounds(
    jobs: Iterable[ReplayJob], workers: GpuWorkers, policy: RoundPolicy, *, period: float = 360.0, overhead: float = 0.0
) -> ReplayResult:
    """Runs all jobs to their end. `period` and `overhead` are in seconds; see `RoundInput`. Raises ReplayError."""
    by_arrival = tuple(sorted(jobs, key=lambda job: job.arrival))
    arrivals = list(reversed(by_arrival))
    active, end_times = dict[str, ActiveJob](), dict[str, float]()
    previous: tuple[GrantOutcome, ...] = ()
    records: list[RoundRecord] = []
    decision_seconds: list[float] = []
    now, idle_rounds = 0.0, 0
    while arrivals or active:
        if not active:
            now = max(now, arrivals[-1].arrival)
        while arrivals and arrivals[-1].arrival <= now:
            newcomer = arrivals.pop()
            active[newcomer.id] = ActiveJob(newcomer)
        round_input = RoundInput(len(records), now, period, overhead, active, workers, previous)
        began = perf_counter()
        grants = policy.decide(round_input)
        decision_seconds.append(perf_counter() - began)
        _check_grants(round_input, grants, policy.name)
        previous, progress = serve_grants(round_input, grants)
        idle_rounds = 0 if arrivals or any(job.steps for job in progress.values()) else idle_rounds + 1
        if idle_rounds > _MAX_IDLE_ROUNDS:
            others = pluralise(len(active) - 1, "other job")
            raise ReplayError(f"{policy.name} never runs {next(iter(active))} and {others}")
        seconds = max((outcome.busy_seconds for outcome in previous), default=period)
        records.append(_round_record(round_input, previous, seconds))
        remaining = unfinished_jobs(active, previous, progress)
        end_times |= {job: now + done.finished_after for job, done in progress.items() if job not in remaining}
        active, now = remaining, now + seconds
    return ReplayResult(
        policy.name, by_arrival, end_times, workers.gpus_by_type, tuple(records), tuple(decision_seconds)
    )


def _round_record(round_input: RoundInput, outcomes: Sequence[GrantOutcome], seconds: float) -> RoundRecord:
    busy, granted, types = defaultdict[str, float](float), Counter[str](), round_input.workers.gpu_types
    for outcome in outcomes:
        for worker in outcome.grant.workers:
            busy[types[worker]] += outcome.busy_seconds
            granted[types[worker]] += 1
    running = {job for outcome in outcomes for job in outcome.grant.jobs}
    previous_grants = {outcome.grant for outcome in round_input.previous}
    return RoundRecord(
        round_input.time,
        seconds,
        dict(busy),
        dict(granted),
        len(running),
        len(round_input.jobs) - len(running),
        sum(outcome.grant in previous_grants for outcome in outcomes),
        sum(any(job in round_input.jobs for job in outcome.grant.jobs) for outcome in round_input.previous),
    )


def _check_grants(round_input: RoundInput, grants: Iterable[Grant], policy: str) -> None:
    """Raises ReplayError for an invalid grant."""
    taken = set[int]()
    for grant in grants:
        for wrong in _violations(grant, round_input, taken):
            raise ReplayError(f"{policy} cannot grant {','.join(grant.jobs)} workers {grant.workers}: {wrong}")
        taken.update(grant.workers)


def _violations(grant: Grant, round_input: RoundInput, taken: set[int]) -> Iterator[str]:
    if len({*grant.jobs}) != len(grant.jobs) or len(grant.jobs) not in (1, 2):
        yield "expected one job or two"
    if unknown := [job for job in grant.jobs if job not in round_input.jobs]:
        yield f"{unknown[0]} is not there"
    elif not grant.workers or any(not 0 <= worker < len(round_input.workers) for worker in grant.workers):
        yield "there are no such workers"
    elif len({*grant.workers}) < len(grant.workers) or not taken.isdisjoint(grant.workers):
        yield "a worker is granted twice"
