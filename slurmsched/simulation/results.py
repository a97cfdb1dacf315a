"""The result of a simulated run, from which metrics and plots are made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from slurmsched.backends.simulated import SimulatedJob, UsageInterval, VirtualCluster
from slurmsched.model import MILLI_PER_GPU, JobId, JobState
from slurmsched.policies.policies import takes_order
from slurmsched.simulation.inputs import CLOCK_START, PolicyChoice, Scenario, SimulationOptions
from slurmsched.traces import TraceJob


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job. Times are in seconds from the trace's start, None for what never happened.

    `work` is its duration in the trace. `service` is its allocated GPU-seconds, `by_type` the same by GPU type (of each
    run's first node), `useful` the GPU-seconds whose work was kept, `cpu_service` its allocated CPU-seconds.
    `migrations` are the restarts on other nodes, part of `restarts`.
    """

    job: str
    arrival: float
    work: float
    gpus: float
    user: str = ""
    account: str = ""
    model: str = ""
    start: float | None = None
    end: float | None = None
    state: str = "UNFINISHED"
    """Slurm's final state: COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL; or UNFINISHED."""
    service: float = 0.0
    by_type: Mapping[str, float] = field(default_factory=dict)
    useful: float = 0.0
    cpu_service: float = 0.0
    restarts: int = 0
    migrations: int = 0

    @property
    def completed(self) -> bool:
        return self.state == "COMPLETED" and self.end is not None

    @property
    def jct(self) -> float:
        """Job completion time in seconds, from arrival to end; infinite for an unfinished job."""
        return float("inf") if self.end is None else self.end - self.arrival


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The cluster at one time (seconds from the trace's start). `gpus`, `cpus` and `memory` (MiB) are allocated.

    `speed` is the work per second of all jobs together, in GPU-seconds at the proportional share. `stranded` is the
    number of idle GPUs on nodes with fewer of them than the largest pending job needs on one node.
    """

    time: float
    running: int
    waiting: int
    gpus: float
    cpus: float
    memory: float
    speed: float
    stranded: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of one policy on one trace.

    `total_*` are the cluster's amounts. `window` are the measured jobs as indices in order of arrival, first and one
    after the last; None for all. `decisions` are the seconds of each decision, `wall_s` and `cpu_s` those of the run.
    """

    policy: str
    order: str
    trace: str
    seed: int
    jobs: tuple[JobResult, ...]
    samples: tuple[ClusterSample, ...]
    total_gpus: float
    total_cpus: float
    total_memory: float
    rounds: int
    decisions: tuple[float, ...]
    wall_s: float
    cpu_s: float
    window: tuple[int, int] | None = None
    load: float | None = None
    """Jobs per hour of a trace that was generated for a sweep."""

    @property
    def measured_jobs(self) -> tuple[JobResult, ...]:
        """The jobs in the window."""
        first, stop = self.window or (0, len(self.jobs))
        return self.jobs[first:stop]


@dataclass(frozen=True, slots=True)
class FinishedSimulation:
    """A simulation that has ended, from which its result is collected."""

    scenario: Scenario
    choice: PolicyChoice
    options: SimulationOptions
    cluster: VirtualCluster
    jobs: Mapping[JobId, TraceJob]
    samples: Sequence[ClusterSample]
    decisions: Sequence[float]
    """Seconds of each decision."""


def take_sample(cluster: VirtualCluster, time: float) -> ClusterSample:
    """Samples the cluster; `time` is in seconds from the trace's start."""
    running = [job for job in cluster.jobs.values() if job.state is JobState.RUNNING]
    waiting = [job for job in cluster.jobs.values() if job.state is JobState.PENDING]
    allocated = [allocation.resources for job in running for allocation in job.allocations]
    gpus_of = {job.id: cluster.lifecycle.gpus_of(job) for job in running}
    idle = [len(node.idle_gpus) for node in cluster.nodes.values()]
    largest = max((job.current_request.gpus_per_node or job.current_request.gpus for job in waiting), default=0)
    return ClusterSample(
        time=time,
        running=len(running),
        waiting=len(waiting),
        gpus=float(sum(gpus_of.values())),
        cpus=float(sum(resources.cpus for resources in allocated)),
        memory=float(sum(resources.memory for resources in allocated)),
        speed=sum(
            job.work.run.rate * gpus_of[job.id]
            for job in running
            if job.work.run is not None and job.work.run.productive_from <= cluster.now
        ),
        stranded=float(sum(gpus for gpus in idle if gpus < largest)),
    )


def collect_result(finished: FinishedSimulation, wall_s: float, cpu_s: float) -> SimulationResult:
    """The result at the clock's time. Jobs that still run count up to then; `wall_s` and `cpu_s` are seconds."""
    cluster, scenario, options, choice = finished.cluster, finished.scenario, finished.options, finished.choice
    types = {node.name: node.gpus[0].type for node in scenario.nodes if node.gpus}
    runs: defaultdict[JobId, list[UsageInterval]] = defaultdict(list)
    for interval in cluster.lifecycle.usage_intervals:
        runs[interval.job].append(interval)
    for job in cluster.jobs.values():
        if job.state is JobState.RUNNING:
            runs[job.id].append(cluster.lifecycle.usage(job, cluster.now))
    ended = cluster.lifecycle.ended
    total = sum(len(node.gpus) for node in scenario.nodes)
    return SimulationResult(
        policy=choice.system,
        order=choice.order if takes_order(choice.system) else "",
        trace=scenario.trace.name,
        seed=options.seed,
        jobs=tuple(_job_result(job, ended.get(number), runs[number], types) for number, job in finished.jobs.items()),
        samples=tuple(finished.samples),
        total_gpus=float(total),
        total_cpus=float(sum(node.total.cpus for node in scenario.nodes if node.gpus)),
        total_memory=float(sum(node.total.memory for node in scenario.nodes if node.gpus)),
        rounds=len(finished.decisions),
        decisions=tuple(finished.decisions),
        wall_s=wall_s,
        cpu_s=cpu_s,
        window=options.window,
    )


def _job_result(
    job: TraceJob, ended: SimulatedJob | None, runs: list[UsageInterval], types: Mapping[str, str]
) -> JobResult:
    by_type: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        by_type[types[run.nodes[0]]] += run.gpu_seconds
    migrations = sum(before.nodes != after.nodes for before, after in pairwise(runs))
    end = None if ended is None or ended.end_time is None else ended.end_time - CLOCK_START
    return JobResult(
        job=job.id,
        arrival=job.arrival,
        work=job.duration,
        gpus=job.gpus + job.milli_gpu / MILLI_PER_GPU,
        user=job.user,
        account=job.account,
        model=job.model,
        start=runs[0].start - CLOCK_START if runs else None,
        end=end,
        state="UNFINISHED" if ended is None else ended.state_text,
        service=sum(run.gpu_seconds for run in runs),
        by_type=dict(by_type),
        useful=sum(run.gpus * run.useful_seconds for run in runs),
        cpu_service=sum(run.cpus * (run.end - run.start) for run in runs),
        restarts=max(0, len(runs) - 1),
        migrations=migrations,
    )
