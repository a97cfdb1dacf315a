"""When jobs that wait start and end: the simulator runs from the present, once for each draw of how long jobs run.

The rounds of the daemon run on with the site's settings, or Slurm alone where no round would start jobs. Nothing is
learnt from what happens there, and nothing is written. Jobs that are submitted later are not foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.backends.simulated import Delays, VirtualClock, VirtualCluster, profiled_speed
from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.backends.simulated.present import cluster_of_snapshot, jobs_left_out
from slurmsched.daemon.clock import Clock
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.length_distribution import (
    LEVELS,
    LengthDistribution,
    draw_scores,
    expected_lengths,
    lengths_at,
    normal_quantiles,
)
from slurmsched.knowledge.lengths import LengthHistory, lengths_of, unfinished_jobs
from slurmsched.knowledge.work import UnfinishedJob, Work, WorkKind
from slurmsched.model import (
    AccountedRun,
    ExpectedLength,
    ExpectedTime,
    Hold,
    Job,
    JobId,
    JobState,
    QueueForecast,
    Request,
    SchedulerState,
    Snapshot,
    StartForecast,
)
from slurmsched.model.reasons import pluralise
from slurmsched.rounds.refusals import LIMIT_REASONS
from slurmsched.rounds.specs import held_by_us, with_original_requests
from slurmsched.settings.definition import Mode, Settings
from slurmsched.simulation.engine import SimulatedDaemon
from slurmsched.simulation.inputs import PLAIN_SLURM, SimulationOptions
from slurmsched.simulation.state_store import InMemoryStateStore

HORIZON: Final = 7 * 86400.0
"""Seconds that are looked ahead."""

DRAWS: Final = 100
_LIKELY: Final = (0.1, 0.5, 0.9)
_COMPLETING: Final = 5.0
_LATER: Final = 1e15
"""Stands for a time after the horizon where quantiles are taken."""


def forecast_starts(
    snapshot: Snapshot,
    state: SchedulerState,
    settings: Settings,
    knowledge: Knowledge,
    generator: np.random.Generator,
    *,
    draws: int = DRAWS,
    budget: float,
    clock: Clock,
    horizon: float = HORIZON,
) -> QueueForecast:
    """Returns when the waiting jobs of the snapshot start and end, by at most so many draws.

    Stops when `budget` seconds are spent by the clock: a draw that is not over then counts only if it is the first,
    with what it has reached as the horizon. The lengths of a draw depend on the generator and on its number alone.
    """
    began = clock.monotonic()
    future = _Future.of(snapshot, state, settings, knowledge)
    runs, until = list[_Run](), snapshot.time + horizon
    while not runs or (len(runs) < draws and clock.monotonic() - began < budget):
        run = future.run(
            draw_scores(future.owners, generator)[None, :], until, lambda: clock.monotonic() - began >= budget
        )
        if run.over or not runs:
            runs.append(run)
            until = until if run.over else run.until
    jobs = future.jobs
    starts, ends = (np.array([[run.times[job][side] for run in runs] for job in jobs]) for side in (0, 1))
    forecasts = [
        StartForecast(job, _quantiles(starts[at]), _quantiles(ends[at]), len(runs), int(np.isinf(starts[at]).sum()))
        for at, job in enumerate(jobs)
    ]
    return QueueForecast(
        snapshot.time,
        until,
        len(runs),
        tuple(sorted(forecasts, key=lambda one: (one.start.median or inf, one.start.low or inf))),
        future.left_out,
        runs[0].remarks,
    )


def forecast_submission(
    variants: Sequence[tuple[Job, ExpectedLength | None]],
    snapshot: Snapshot,
    state: SchedulerState,
    settings: Settings,
    knowledge: Knowledge,
    *,
    generator: np.random.Generator,
    draws: int = DRAWS,
    budget: float,
    clock: Clock,
    horizon: float = HORIZON,
) -> Sequence[QueueForecast]:
    """Returns when a job that is not submitted yet would start and end, for each of its variants: requests of a job of
    the same id, with their lengths if these are known.

    Each draw is one for all variants, so that they can be compared; draws and budget count as in `forecast_starts` for
    the first. Another variant whose first draw is not over within its share of what is left is left out.
    """
    began = clock.monotonic()
    futures = [
        _Future.of(
            replace(snapshot, jobs=(*snapshot.jobs, job)),
            state if length is None else replace(state, lengths={**state.lengths, job.id: length}),
            settings,
            knowledge,
            only=job.id,
        )
        for job, length in variants
    ]
    scores = generator.standard_normal((1, len(futures[0].lengths)))
    over_at, until, first = began + budget, snapshot.time + horizon, list[_Run]()
    for place, future in enumerate(futures):
        left = max(0.0, over_at - clock.monotonic()) / max(1, len(futures) - place)
        due = clock.monotonic() + left if place else over_at
        first.append(future.run(scores, until, partial(_has_passed, due, clock)))
    kept = [place for place, run in enumerate(first) if run.over and first[0].over] or [0]
    until = until if first[0].over else first[0].until
    rounds = [[first[place] for place in kept]]
    while first[0].over and len(rounds) < draws and clock.monotonic() < over_at:
        scores = generator.standard_normal((1, len(futures[0].lengths)))
        runs = [futures[place].run(scores, until, partial(_has_passed, over_at, clock)) for place in kept]
        if all(run.over for run in runs):
            rounds.append(runs)
    told = {place: [runs[at] for runs in rounds] for at, place in enumerate(kept)}
    return [
        _told_of_one(future, job.id, told.get(place, ()), until)
        for place, (future, (job, _)) in enumerate(zip(futures, variants, strict=True))
    ]


def _told_of_one(future: _Future, job: JobId, runs: Sequence[_Run], until: float) -> QueueForecast:
    why = future.left_out.get(job) or ("" if runs else "there was no time to simulate it")
    if why:
        return QueueForecast(future.snapshot.time, until, len(runs), (), {job: why}, runs[0].remarks if runs else ())
    times = np.array([run.times.get(job, (inf, inf)) for run in runs])
    times[times[:, 0] > until] = inf
    starts, ends = times[:, 0], times[:, 1]
    told = StartForecast(job, _quantiles(starts), _quantiles(ends), len(runs), int(np.isinf(starts).sum()))
    return QueueForecast(future.snapshot.time, until, len(runs), (told,), {}, runs[0].remarks)


@dataclass(frozen=True, slots=True)
class RequestVariant:
    """A request that the owner of a job could make in place of the job's own, and how it is named."""

    name: str
    job: Job


def request_variants(job: Job, snapshot: Snapshot) -> Sequence[RequestVariant]:
    """Returns the job as asked, and with half its GPUs, one GPU, and the other GPU types of its partitions or any.

    With fewer GPUs it asks for fewer CPUs, tasks and nodes and less memory in proportion.
    """
    request = job.original_request
    variants = [("as asked", request)]
    fewer = sorted({request.gpus // 2, 1} - {0, request.gpus}, reverse=True) if request.gpus else []
    variants += [(pluralise(gpus, "GPU"), less) for gpus in fewer if (less := _with_fewer_gpus(request, gpus))]
    if request.gpus or request.shards:
        nodes = {name for one in job.partitions for name in snapshot.partitions_by_name[one].nodes}
        types = sorted({kind for node in snapshot.nodes if node.name in nodes for kind in node.gpu_types if kind})
        if len({*types, request.gpu_type} - {None}) > 1:
            others: list[str | None] = [*types, None]
            variants += [
                (f"on {kind or 'any type'}", replace(request, gpu_type=kind))
                for kind in others
                if kind != request.gpu_type
            ]
    return [
        RequestVariant(name, replace(job, original_request=asked, current_request=asked)) for name, asked in variants
    ]


def _with_fewer_gpus(request: Request, gpus: int) -> Request | None:
    """Returns the request with so many GPUs and its other amounts in proportion; None where its nodes do not allow
    it."""
    if request.nodes * gpus % request.gpus == 0:
        nodes = request.nodes * gpus // request.gpus
    else:
        nodes = request.nodes if gpus % request.nodes == 0 else 1
    if len(request.pinned) > nodes or (request.exclusive and nodes == request.nodes):
        return None
    tasks = max(nodes, request.tasks * gpus // request.gpus)
    whole = request.max_nodes is not None and request.max_nodes == request.nodes
    return replace(
        request,
        gpus=gpus,
        gpus_per_node=None if request.gpus_per_node is None else gpus // nodes,
        nodes=nodes,
        max_nodes=(nodes if nodes > 1 else None) if whole else request.max_nodes,
        tasks=tasks,
        cpus=ceil(request.cpus * gpus / request.gpus / tasks) * tasks,
        memory=ceil(request.memory * request.nodes * gpus / request.gpus / nodes),
    )


def length_of_variant(
    asked: Job, variant: Job, learnt: Sequence[ExpectedLength | None], knowledge: Knowledge, now: float
) -> tuple[ExpectedLength | None, str]:
    """Returns how long the variant would run and by what that is known; None where only its time limit is.

    `learnt` is what earlier runs tell of the job as asked, and of the variant. With other GPUs it takes as much longer
    as its model's rates tell.
    """
    of_asked, of_variant = learnt
    known, words = of_asked, _by_runs(of_asked)
    if known is None and asked.hints.duration:
        waiting = UnfinishedJob.of_job(asked, id=asked.id, time_limit=asked.time_limit, hint=asked.hints.duration)
        known, words = expected_lengths(lengths_of([waiting], LengthHistory(), now))[asked.id], "its hint"
    if variant.original_request == asked.original_request or known is None:
        return known, words
    resized = variant.original_request.gpus != asked.original_request.gpus
    named = any(kind is WorkKind.NAME for kind, _ in Work.of_job(variant).kinds())
    same_size = (WorkKind.LIMIT.words, WorkKind.NAME_AND_GPUS.words) if named else ()
    if resized and of_variant is not None and of_variant.kind in same_size:
        return of_variant, _by_runs(of_variant)
    factor = _slowdown(asked, variant, knowledge)
    if not factor:
        return None, ""
    quantiles = {name: getattr(known, name) * factor for name in ("mean", "median", "low", "high", "latest")}
    return replace(known, **quantiles), "known rates"


def _by_runs(length: ExpectedLength | None) -> str:
    return f"{pluralise(length.runs, 'run')} of same {length.kind}" if length is not None else ""


def _slowdown(asked: Job, variant: Job, knowledge: Knowledge) -> float:
    """Returns how many times as long the variant runs as the job as asked, by rates of its model that were measured
    with as many GPUs of these types; 0.0 if unknown."""
    profile, rates = knowledge.rate_profile(asked), list[float]()
    for request in (asked.original_request, variant.original_request):
        kinds = [request.gpu_type] if request.gpu_type is not None else list(profile.scaling if profile else ())
        known = [profile.scaling[kind].gpus for kind in kinds if profile is not None and kind in profile.scaling]
        if not any(counts[0] <= request.gpus <= counts[-1] for counts in known):
            return 0.0
        rates.append(knowledge.reference_rate(profile, request.gpu_type, request.gpus))
    return rates[0] / rates[1] if all(rates) else 0.0


def _has_passed(due: float, clock: Clock) -> bool:
    return clock.monotonic() >= due


def _quantiles(times: Floats) -> ExpectedTime:
    """So that of many further times 80 % are expected within the range, however few were drawn (Weibull)."""
    known = np.quantile(np.minimum(times, _LATER), _LIKELY, method="weibull").tolist()
    low, median, high = (None if time > _LATER / 1e3 else time for time in known)
    return ExpectedTime(low, median, high)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run: when each job started and ended, infinite where it did not by `until`; `over` unless it was stopped."""

    times: Mapping[JobId, tuple[float, float]]
    until: float
    over: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Future:
    """What all draws have in common: how long jobs are expected to run, and which are left out."""

    snapshot: Snapshot
    state: SchedulerState
    settings: Settings
    knowledge: Knowledge
    lengths: Mapping[JobId, ExpectedLength]
    left_out: Mapping[JobId, str]
    foreseen: _ForeseenLengths | None
    only: JobId = ""
    """The one job of which something is asked; empty for all."""

    @classmethod
    def of(
        cls, snapshot: Snapshot, state: SchedulerState, settings: Settings, knowledge: Knowledge, only: JobId = ""
    ) -> _Future:
        back = _requeued(snapshot, state)
        jobs = (replace(job, state=JobState.PENDING) if job.id in back else job for job in snapshot.jobs)
        seen = replace(snapshot, jobs=tuple(jobs))
        unfinished = {job.id: job for job in unfinished_jobs(seen, state.service, state.steps)}
        lengths = _lengths(unfinished, state.lengths, snapshot.time)
        left_out = jobs_left_out(with_original_requests(snapshot, state), _without(snapshot, state))
        foreseen = _ForeseenLengths.from_known(state.lengths, unfinished) if settings.learning.knows_lengths else None
        return cls(snapshot, state, settings, knowledge, lengths, left_out, foreseen, only)

    @property
    def owners(self) -> Sequence[str]:
        """Whose the jobs are of which lengths are drawn."""
        jobs = self.snapshot.jobs_by_id
        return [jobs[job].user for job in self.lengths]

    @property
    def plain(self) -> bool:
        """Whether Slurm alone starts jobs."""
        starts = self.settings.rounds.mode in (Mode.ENFORCE, Mode.PRIORITIZE)
        return self.settings.policy.system == PLAIN_SLURM or not starts

    @property
    def jobs(self) -> Sequence[JobId]:
        """The waiting jobs that are simulated."""
        waiting = [job.id for job in self.snapshot.jobs_in_state(JobState.PENDING) if job.id not in self.left_out]
        return waiting if not self.only else [job for job in waiting if job == self.only]

    def run(self, scores: Floats, until: float, spent: Callable[[], bool]) -> _Run:
        """Runs the cluster on until all waiting jobs have started, or until then, or until all is spent."""
        seconds = dict(zip(self.lengths, lengths_at([*self.lengths.values()], scores)[0].tolist(), strict=True))
        cluster, remarks = self._cluster(seconds)
        daemon = self._daemon(cluster)
        clock, period, idle, over = daemon.clock, self.settings.rounds.period, 0, True
        jobs = self.jobs
        while clock.now() < until and any(_has_not_started(cluster.jobs.get(job)) for job in jobs):
            if spent():
                over = False
                break
            daemon.run_due_round()
            upcoming = cluster.events.next_time
            idle = idle + 1 if upcoming is None and (daemon.is_quiet or self.plain) else 0
            if idle > (0 if self.plain else _MOST_IDLE_ROUNDS):
                break
            step = upcoming if self.plain and upcoming is not None else clock.now() + period
            daemon.advance(min(max(step, clock.now()), until), until)
        return _Run(_times(cluster, jobs), clock.now() if not over else until, over, remarks)

    def _cluster(self, seconds: Mapping[JobId, float]) -> tuple[VirtualCluster, tuple[str, ...]]:
        snapshot, state = self.snapshot, self.state
        waiting = snapshot.jobs_in_state(JobState.PENDING)
        return cluster_of_snapshot(
            snapshot,
            seconds,
            speed=profiled_speed(self.knowledge.simulated(), snapshot.nodes),
            delays=Delays(restart=self.settings.guards.restart_cost, completing=_COMPLETING, min_job_age=0.0),
            left_out=self.left_out,
            released=[job.id for job in waiting if self.plain and held_by_us(job, state)],
            requeued=_requeued(snapshot, state),
        )

    def _daemon(self, cluster: VirtualCluster) -> SimulatedDaemon:
        rounds = self.settings.rounds
        early = rounds.early_interval if rounds.mode is Mode.ENFORCE else 0.0  # as the daemon has them
        return SimulatedDaemon(
            cluster,
            VirtualClock(cluster.now),
            InMemoryStateStore.of_state(self.state, self.snapshot, self.foreseen),
            settings=self.settings,
            knowledge=self.knowledge,
            options=SimulationOptions(rounds.period, early=early, completing=_COMPLETING),
            plain=self.plain,
        )


_MOST_IDLE_ROUNDS: Final = 12
"""Rounds without an operation, and without an event to come, after which nothing more is expected to start."""


def _has_not_started(job: SimulatedJob | None) -> bool:
    return job is not None and job.run_number == 0 and job.state is JobState.PENDING


def _times(cluster: VirtualCluster, jobs: Sequence[JobId]) -> Mapping[JobId, tuple[float, float]]:
    """When each of these jobs started and ended; one that runs at last ends after the work that it has left then."""
    lifecycle, first = cluster.lifecycle, dict[JobId, float]()
    for run in lifecycle.usage_intervals:
        first.setdefault(run.job, run.start)
    times = dict[JobId, tuple[float, float]]()
    for number in jobs:
        job = lifecycle.ended.get(number) or cluster.jobs.get(number)
        if job is None or not job.run_number:
            times[number] = inf, inf
            continue
        start = first.get(number, cluster.now if job.start_time is None else job.start_time)
        times[number] = start, _end(job, cluster.now)
    return times


def _end(job: SimulatedJob, now: float) -> float:
    if job.work.run is not None:
        return min(job.work.run.finish_time(job.work.total), job.latest_end)
    if job.end_time is not None and job.next_state != JobState.PENDING.name:
        return job.end_time
    return now + max(0.0, job.work.total - job.work.checkpointed)


def _requeued(snapshot: Snapshot, state: SchedulerState) -> frozenset[JobId]:
    """The completing jobs that wait again afterwards."""
    return state.held & {job.id for job in snapshot.jobs_in_state(JobState.COMPLETING)}


def _without(snapshot: Snapshot, state: SchedulerState) -> Mapping[JobId, str]:
    """The waiting jobs of which nothing can be told, each with why."""
    why = dict[JobId, str]()
    for job in snapshot.jobs_in_state(JobState.PENDING):
        if job.hold is not Hold.NONE and not held_by_us(job, state):
            why[job.id] = "it is held"
        elif job.hold is Hold.NONE and job.reason.startswith(LIMIT_REASONS):
            why[job.id] = f"it waits for a limit of Slurm ({job.reason})"
    return why


def _lengths(
    unfinished: Mapping[JobId, UnfinishedJob], known: Mapping[JobId, ExpectedLength], now: float
) -> Mapping[JobId, ExpectedLength]:
    """How long each job still runs: by earlier runs, else by its hint, its progress and its limit alone."""
    others = [job for job in unfinished.values() if job.id not in known]
    guessed = expected_lengths(lengths_of(others, LengthHistory(), now))
    return {job: known.get(job) or guessed[job] for job in unfinished}


@dataclass(frozen=True, slots=True)
class _ForeseenLengths:
    """What decisions know of lengths while time runs on: what was known at first, given how long jobs have run since.

    Nothing is learnt from simulated runs.
    """

    first: Mapping[JobId, LengthDistribution]
    elapsed: Mapping[JobId, float]

    @classmethod
    def from_known(cls, known: Mapping[JobId, ExpectedLength], jobs: Mapping[JobId, UnfinishedJob]) -> _ForeseenLengths:
        of_jobs = {job: length for job, length in known.items() if job in jobs}
        scores = np.broadcast_to(normal_quantiles(LEVELS)[:, None], (len(LEVELS), len(of_jobs)))
        quantiles = lengths_at([*of_jobs.values()], scores).T
        first = {
            job: LengthDistribution(seconds, length.mean, count=length.runs, age=length.age)
            for (job, length), seconds in zip(of_jobs.items(), quantiles, strict=True)
        }
        return cls(first, {job: jobs[job].elapsed for job in of_jobs})

    def ended(self, run: AccountedRun) -> None:
        """Does nothing."""

    def of(self, jobs: Sequence[UnfinishedJob], _now: float) -> Mapping[JobId, ExpectedLength]:
        """How long those of the jobs still run of which something was known."""
        return expected_lengths({job.id: self._left(job) for job in jobs if job.id in self.first})

    def _left(self, job: UnfinishedJob) -> LengthDistribution:
        more, first = job.elapsed - self.elapsed[job.id], self.first[job.id]
        return first if more <= 0 else first.remaining(more)
