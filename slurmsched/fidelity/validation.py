"""The simulator held against a real Slurm: short jobs scheduled by real rounds, and the same jobs simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from threading import Event, Thread
from typing import Final

import numpy as np

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.keepalive import SystemdNotifier
from slurmsched.daemon.lock import exclusive_lock
from slurmsched.daemon.log import remarks
from slurmsched.daemon.loop import DaemonLoop
from slurmsched.daemon.process import SignalRequests
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Hints,
    Job,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    Request,
    Resources,
    SynschedError,
)
from slurmsched.settings.definition import GuardSettings, Settings
from slurmsched.simulation import JobResult, PolicyChoice, Scenario, SimulationOptions, SimulationResult
from slurmsched.simulation.engine import simulate
from slurmsched.simulation.submissions import build_submission
from slurmsched.store.store import Store
from slurmsched.template_files import render
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import SPEC_PARTITION

CHECKPOINT_LEAD: Final = 2
"""Seconds between the signal and the eviction of a job, for its checkpoint."""

Submit = Callable[[Sequence[str], str], JobId]
"""Runs sbatch with options and a script; returns the job id."""


def hint_comment(job: TraceJob) -> str:
    """The comment with the job's hints, live and simulated: its model, its checkpoint signal with the lead, and its
    duration, as policies that go by lengths would otherwise know more in one of the two."""
    return f"synsched:model={job.model},ckpt=usr1@{CHECKPOINT_LEAD},duration={ceil(job.duration)}"


@dataclass(frozen=True, slots=True)
class SleeperJobs:
    """Submits the jobs of a trace as sleeping batch scripts. `folder` is shared by all nodes and holds checkpoints."""

    knowledge: Knowledge
    nodes: Mapping[str, Node]
    folder: Path
    submit: Submit

    def submit_job(self, job: TraceJob) -> JobId:
        """Submit the job; returns its id. Raises BackendError."""
        node = next(node for node in self.nodes.values() if job.gpu_type in node.gpu_types)
        options = (
            f"--job-name=fidelity-{job.id}",
            f"--comment={hint_comment(job)}",
            f"--gres=gpu:{job.gpu_type}:{job.gpus}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={job.cpus}",
            f"--mem={job.memory}M",
            "--requeue",
            f"--chdir={self.folder}",
            "--output=/dev/null",
        )
        script = render("sleeper.sh", seconds=job.duration, folder=self.folder, speeds=self._speeds(job, node))
        return self.submit(options, script)

    def _speeds(self, job: TraceJob, node: Node) -> list[int]:
        """The speed with 0, 1, 2, ... CPUs, in thousandths of that at the GPU-proportional share."""
        request = Request(gpus=job.gpus, gpu_type=job.gpu_type, cpus=job.cpus or 1, memory=job.memory or 0)
        hinted_job = Job(job.id, job.user, request, request, hints=Hints(given=True, model=job.model))
        allocations = (
            NodeAllocation(node.name, Resources(job.gpus, cpus, request.memory), job.gpu_type)
            for cpus in range(1, node.total.cpus + 1)
        )
        speeds = (self.knowledge.relative_speed(hinted_job, (allocation,), self.nodes) for allocation in allocations)
        return [1000, *(max(1, round(1000 * speed)) for speed in speeds)]


_LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks which jobs have ended; Slurm shows ended jobs for minutes."""


@dataclass(slots=True)
class _ObservingClock:
    """The daemon's clock, which looks every few seconds, while the daemon waits, at what has become of the jobs."""

    clock: Clock
    look: Callable[[], None]
    due: float = 0.0

    def now(self) -> float:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        if self.clock.monotonic() >= self.due:
            self.due = self.clock.monotonic() + _LOOK_INTERVAL
            self.look()


@dataclass(frozen=True, slots=True)
class LiveJobResult:
    """The result of one job; `submitted` and `ended` are in seconds after the start of the first round, `time_limit`
    is the one that its partition gave it, in seconds."""

    submitted: float
    ended: float
    restarts: int
    time_limit: int | None = None


@dataclass(slots=True)
class _Submitter:
    """Submits each job at its arrival time, in a thread beside the rounds."""

    trace: Trace
    sleeper: SleeperJobs
    clock: Clock
    queued: dict[JobId, tuple[str, float]] = field(default_factory=dict)
    """By job id: the id in the trace, and the submit time (unix seconds), which Slurm renews at a requeue."""
    error: SynschedError | None = None
    stopped: Event = field(default_factory=Event)

    def run(self) -> None:
        start = self.clock.monotonic()
        for job in self.trace.jobs:
            if self.stopped.wait(max(0.0, start + job.arrival - self.clock.monotonic())):
                return
            try:
                at = self.clock.now()
                self.queued[self.sleeper.submit_job(job)] = job.id, at
            except SynschedError as error:  # raised again by `run_live`
                self.error = error
                return


def run_live(
    trace: Trace,
    site: SchedulerContext,
    sleeper: SleeperJobs,
    clock: Clock,
    say: Callable[[str], None],
    *,
    time_limit: float = 3600.0,
) -> dict[str, LiveJobResult]:
    """Run the trace; returns the results without jobs that have not ended after `time_limit` seconds.

    Raises BackendError, StoreError, and AlreadyRunningError if a daemon is running, whose rounds would interfere.
    """
    path = Path(site.settings.storage.path)
    submitter = _Submitter(trace, sleeper, clock)
    ended: dict[JobId, Job] = {}
    deadline = clock.monotonic() + time_limit
    requests = SignalRequests()

    def look() -> None:
        finished = site.backend.observe().jobs_in_state(JobState.FINISHED)
        ended.update({job.id: job for job in finished if job.id in submitter.queued})
        over = len(ended) == len(trace.jobs) or clock.monotonic() >= deadline
        requests.stop = over or submitter.error is not None

    with exclusive_lock(path), closing(Store.open(path, clock.now(), check_interval=0.0)) as store:
        daemon = DaemonLoop(
            site,
            lambda: site,
            store,
            _ObservingClock(clock, look),
            requests=requests,
            systemd=SystemdNotifier({}),
            log=remarks(say),
        )
        began = clock.now()
        submitting = Thread(target=submitter.run, name="submissions")
        submitting.start()
        try:
            daemon.run()
        finally:
            submitter.stopped.set()
            submitting.join()
    if submitter.error is not None:
        raise submitter.error
    return {
        submitter.queued[job.id][0]: LiveJobResult(
            submitter.queued[job.id][1] - began, job.end_time - began, job.restarts, job.time_limit
        )
        for job in ended.values()
        if job.end_time is not None
    }


MODELS: Final = ("resnet18", "shufflenet", "resnet50", "gnmt", "transformer", "deepspeech")
USUAL_ROUND: Final = 15.0
"""Seconds of a round."""

SHORTEST: Final = 20.0
LONGEST: Final = 160.0
"""Bounds of the jobs' durations in seconds where rounds are as long as usual; the durations are log-uniform."""

_GPU_COUNTS: Final = (1, 1, 1, 2, 2, 4, 8)


def generate_workload(
    nodes: Sequence[Node], jobs: int, random: np.random.Generator, period: float = USUAL_ROUND, load: float = 1.3
) -> Trace:
    """Generate `jobs` jobs for the GPU types of the nodes, each fitting on one node. They last and come apart in
    proportion to a round of `period` seconds. `load` is the arriving work as a multiple of what all GPUs do at the
    GPU-proportional share."""
    gpu_nodes = [node for node in nodes if node.gpus]
    job_nodes = [gpu_nodes[int(index)] for index in random.integers(len(gpu_nodes), size=jobs)]
    gpu_counts = [
        min(int(count), len(node.gpus)) for count, node in zip(random.choice(_GPU_COUNTS, jobs), job_nodes, strict=True)
    ]
    usual = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), jobs))
    seconds = (usual * (period / USUAL_ROUND)).round(1)
    models = random.choice(MODELS, jobs)
    rate = load * sum(len(node.gpus) for node in gpu_nodes) / float(np.mean(np.multiply(gpu_counts, seconds)))
    arrivals = np.cumsum(random.exponential(1 / rate, jobs)).round(1)
    return Trace(
        name="fidelity",
        source="generated: short jobs",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=gpus,
                duration=float(work),
                model=str(model),
                user="fidelity",
                gpu_type=node.gpus[0].type,
                gpus_per_node=gpus,
                cpus=(share := node.proportional_share(gpus)).cpus,
                memory=share.memory,
            )
            for number, (arrival, gpus, work, model, node) in enumerate(
                zip(arrivals, gpu_counts, seconds, models, job_nodes, strict=True), start=1
            )
        ),
    )


TOLERANCE: Final = 0.05
"""Maximum relative distance of the live metrics from the range of the simulated ones."""

LAUNCH_DELAY: Final = 0.5
"""Seconds from a job's end until its resources are free, and also from a round until the jobs run that it starts, as
measured on a small cluster with jobs that only sleep."""

OTHER_LAUNCH_DELAYS: Final = (0.0, 1.0, 1.5, 2.0, 2.5)
"""What it may also take from a round until the jobs run: Slurm's scheduler lets two seconds pass between two runs
(sched_min_interval), so that chance decides which of two jobs begins first, and that on what comes after."""


class FidelityError(SynschedError):
    """No job ended, so there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class JobFidelity:
    """One job on both: when it was submitted and when it ended, in seconds after the first round, and its restarts."""

    job: str
    gpus: float
    submitted_s: float
    live_end_s: float
    simulated_end_s: float
    live_restarts: int
    simulated_restarts: int

    @property
    def difference_s(self) -> float:
        """Seconds that the simulated job ends later than the live one."""
        return self.simulated_end_s - self.live_end_s


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Live and simulated metrics in seconds, their ratios (simulated divided by live), and each job that ended.

    What is simulated has the usual delay of launches; the ranges, lowest first, are of that and of the others.
    """

    jobs: int
    ended: int
    live_avg_jct_s: float
    simulated_avg_jct_s: float
    avg_jct_ratio: float
    live_makespan_s: float
    simulated_makespan_s: float
    makespan_ratio: float
    live_restarts: int
    simulated_restarts: int
    avg_jct_range_s: tuple[float, float]
    makespan_range_s: tuple[float, float]
    by_job: tuple[JobFidelity, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all jobs ended, and both metrics are at most TOLERANCE outside the range of the simulated ones."""
        figures = (self.live_avg_jct_s, self.avg_jct_range_s), (self.live_makespan_s, self.makespan_range_s)
        within = all(low - TOLERANCE * live <= live <= high + TOLERANCE * live for live, (low, high) in figures)
        return within and self.ended == self.jobs


def shorten_period(settings: Settings, period: float) -> Settings:
    """The settings with rounds every `period` seconds, and the other times shortened in proportion."""
    factor = period / settings.rounds.period
    return replace(
        settings,
        rounds=replace(settings.rounds, period=period, settle_interval=min(1.0, settings.rounds.settle_interval)),
        policy=replace(settings.policy, las_queues=tuple(bound * factor for bound in settings.policy.las_queues)),
        tickets=replace(
            settings.tickets,
            quantum=settings.tickets.quantum * factor,
            wide_quantum=settings.tickets.wide_quantum * factor,
        ),
        checkpoint=replace(settings.checkpoint, lead=settings.checkpoint.lead * factor),
        guards=replace(
            GuardSettings(),
            min_run_time=settings.guards.min_run_time * factor,
            restart_cost=settings.guards.restart_cost * factor,
            moves_per_round=settings.guards.moves_per_round,
            moves_per_job_day=1000,
        ),
    )


def measure_fidelity(
    trace: Trace, site: SchedulerContext, *, folder: Path, submit: Submit, clock: Clock, say: Callable[[str], None]
) -> Fidelity:
    """Run the trace on the cluster, then simulate it; returns the comparison.

    Raises BackendError, StoreError, AlreadyRunningError, FidelityError.
    """
    nodes = site.backend.observe().nodes_by_name
    live = run_live(trace, site, SleeperJobs(site.knowledge, nodes, folder, submit), clock, say)
    if not live:
        raise FidelityError("no job ended: see 'squeue' and 'synsched doctor'")
    return compare_with_simulation(trace, site, tuple(nodes.values()), live)


def compare_with_simulation(
    trace: Trace, site: SchedulerContext, nodes: Sequence[Node], live: Mapping[str, LiveJobResult]
) -> Fidelity:
    """Simulate the jobs that ended on the same nodes, with their real submit times, and compare the metrics."""
    runs = [_simulate(trace, site, nodes, live, launch=delay) for delay in (LAUNCH_DELAY, *OTHER_LAUNCH_DELAYS)]
    simulated, ended = runs[0], live.values()
    start = min(job.submitted for job in ended)
    live_jct = float(np.mean([job.ended - job.submitted for job in ended]))
    live_makespan = max(job.ended for job in ended) - start
    jcts, makespans = [_mean_jct(run) for run in runs], [_last_end(run) - start for run in runs]
    simulated_jct, simulated_makespan = jcts[0], makespans[0]
    return Fidelity(
        jobs=len(trace.jobs),
        ended=len(ended),
        live_avg_jct_s=live_jct,
        simulated_avg_jct_s=simulated_jct,
        avg_jct_ratio=simulated_jct / live_jct,
        live_makespan_s=live_makespan,
        simulated_makespan_s=simulated_makespan,
        makespan_ratio=simulated_makespan / live_makespan,
        live_restarts=sum(job.restarts for job in ended),
        simulated_restarts=sum(job.restarts for job in simulated.jobs),
        avg_jct_range_s=(min(jcts), max(jcts)),
        makespan_range_s=(min(makespans), max(makespans)),
        by_job=tuple(_job_fidelity(job, live[job.job]) for job in simulated.jobs),
    )


def _mean_jct(run: SimulationResult) -> float:
    return float(np.mean([job.jct for job in run.jobs]))


def _last_end(run: SimulationResult) -> float:
    return max(job.end or 0.0 for job in run.jobs)


def _job_fidelity(simulated: JobResult, live: LiveJobResult) -> JobFidelity:
    return JobFidelity(
        job=simulated.job,
        gpus=simulated.gpus,
        submitted_s=live.submitted,
        live_end_s=live.ended,
        simulated_end_s=simulated.end or 0.0,
        live_restarts=live.restarts,
        simulated_restarts=simulated.restarts,
    )


def _simulate(
    trace: Trace,
    site: SchedulerContext,
    nodes: Sequence[Node],
    live_jobs: Mapping[str, LiveJobResult],
    *,
    launch: float,
) -> SimulationResult:
    """Simulate the jobs that ended, each of which runs `launch` seconds after the round that starts it."""
    jobs = tuple(
        replace(job, arrival=max(0.0, live_jobs[job.id].submitted)) for job in trace.jobs if job.id in live_jobs
    )
    empty = tuple(
        replace(
            node,
            used=Resources(),
            gpus=tuple(replace(gpu, used=0) for gpu in node.gpus),
            partitions=frozenset({SPEC_PARTITION}),
        )
        for node in nodes
    )
    policy = site.settings.policy
    options = SimulationOptions(
        period=site.settings.rounds.period,
        early=site.settings.rounds.early_interval,
        launch=launch,
        overhead=LAUNCH_DELAY,
        lead=CHECKPOINT_LEAD,
        completing=LAUNCH_DELAY,
        skipping=False,
    )
    submissions = {
        job.id: replace(
            build_submission(job, empty, options, site.knowledge),
            comment=hint_comment(job),
            time_limit=live_jobs[job.id].time_limit,
        )
        for job in jobs
    }
    # the policy knows no more than live: what is a rule of thumb there is none that proves true here
    real = site.knowledge.simulated()
    return simulate(
        Scenario(empty, replace(trace, jobs=jobs), site.knowledge, real=real, submissions=submissions),
        PolicyChoice(policy.system, policy.order, policy.las_queues),
        options,
        site.settings,
    )
