"""The result of a simulated run, and the metrics computed from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.backends.simulated import SimulatedJob, UsageInterval, VirtualCluster
from slurmsched.model import MILLI_PER_GPU, JobId, JobState
from slurmsched.policies.policies import order_read
from slurmsched.simulation.inputs import CLOCK_START, PolicyChoice, Scenario, SimulationOptions
from slurmsched.traces import TraceJob


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job. Times are in seconds from the trace's start, None for what never happened.

    `work` is its duration in the trace. `service` is its allocated GPU-seconds, `by_type` the same by GPU type (of each
    run's first node), `useful` the GPU-seconds whose work was kept, `cpu_service` its allocated CPU-seconds.
    `migrations` are the restarts on other nodes, part of `restarts`. All copies of a forked job are one job, of which
    `copies` are simulated: `gpus` are those of one copy, the other amounts of all, `start` is the first start of any
    copy, and `end` when the last step is done and the parameters are averaged.
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
    copies: int = 0

    @property
    def completed(self) -> bool:
        return self.state == "COMPLETED" and self.end is not None

    @property
    def jct(self) -> float:
        """Job completion time in seconds, from arrival to end; infinite for an unfinished job."""
        return float("inf") if self.end is None else self.end - self.arrival


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The cluster at one time (seconds from the trace's start). `gpus`, `cpus` and `memory` (MiB) are allocated. All
    copies of a forked job count as one job, which waits if none of them runs.

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
    waiting = cluster.waiting
    jobs_running = {job.array_job or job.id for job in running}
    jobs_waiting = {job.array_job or job.id for job in waiting} - jobs_running - cluster.lifecycle.ended_forked.keys()
    allocated = [allocation.resources for job in running for allocation in job.allocations]
    gpus_of = {job.id: cluster.lifecycle.gpus_of(job) for job in running}
    idle = [len(node.idle_gpus) for node in cluster.nodes.values()]
    largest = max((job.current_request.gpus_per_node or job.current_request.gpus for job in waiting), default=0)
    return ClusterSample(
        time=time,
        running=len(jobs_running),
        waiting=len(jobs_waiting),
        gpus=float(sum(gpus_of.values())),
        cpus=float(sum(resources.cpus for resources in allocated)),
        memory=float(sum(resources.memory for resources in allocated)),
        speed=sum(
            job.work.run.rate * gpus_of[job.id]
            for job in running
            if job.work.run is not None
            and job.work.run.productive_from <= cluster.now
            and job.work.run.paused_at is None
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
    ended = cluster.lifecycle.ended | cluster.lifecycle.ended_forked
    runs_by_job = defaultdict[JobId, list[list[UsageInterval]]](list)
    for name, intervals in runs.items():
        runs_by_job[name.partition("_")[0]].append(intervals)
    total = sum(len(node.gpus) for node in scenario.nodes)
    return SimulationResult(
        policy=choice.system,
        order=order_read(choice.system, choice.order),
        trace=scenario.trace.name,
        seed=options.seed,
        jobs=tuple(
            _job_result(job, ended.get(number), runs_by_job[number], types) for number, job in finished.jobs.items()
        ),
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
    job: TraceJob, ended: SimulatedJob | None, runs_by_copy: list[list[UsageInterval]], types: Mapping[str, str]
) -> JobResult:
    """`runs_by_copy` has one list of runs for a job that is not forked, none if it never ran."""
    runs = [run for of_copy in runs_by_copy for run in of_copy]
    by_type: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        by_type[types[run.nodes[0]]] += run.gpu_seconds
    migrations = sum(before.nodes != after.nodes for of_copy in runs_by_copy for before, after in pairwise(of_copy))
    end = None if ended is None or ended.end_time is None else ended.end_time - CLOCK_START
    return JobResult(
        job=job.id,
        arrival=job.arrival,
        work=job.duration,
        gpus=job.gpus + job.milli_gpu / MILLI_PER_GPU,
        user=job.user,
        account=job.account,
        model=job.model,
        start=min(run.start for run in runs) - CLOCK_START if runs else None,
        end=end,
        state="UNFINISHED" if ended is None else ended.state_text,
        service=sum(run.gpu_seconds for run in runs),
        by_type=dict(by_type),
        useful=sum(run.gpus * run.useful_seconds for run in runs),
        cpu_service=sum(run.cpus * (run.end - run.start) for run in runs),
        restarts=len(runs) - len(runs_by_copy),
        migrations=migrations,
        copies=job.fork,
    )


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run. Times are in seconds, fractions between 0 and 1; NaN where there is nothing to average.

    JCT, the job completion time, is from arrival to end, of the measured jobs that completed. `makespan_s` is from the
    first arrival to the last end. Utilizations cover the whole run and all its jobs: the fraction of GPU time whose
    work was kept (not idle, restarting or lost), and the fraction of CPU time allocated to jobs. `ftf_max` and
    `ftf_mean` are finish-time fairness, see `finish_time_fairness`. `share_min` is the smallest GPU time of a user over
    the mean of all users. `stranded` is the mean number of idle GPUs that the largest pending job could not use.
    `wall_s` and `cpu_s` are the simulation's own times, `decision_s_median` that of one decision.
    """

    policy: str
    order: str
    trace: str
    seed: int
    jobs: int
    finished: int
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    gpu_utilization: float
    cpu_utilization: float
    ftf_max: float
    ftf_mean: float
    avg_wait_s: float
    share_min: float
    stranded: float
    restarts: int
    migrations: int
    rounds: int
    wall_s: float
    cpu_s: float
    decision_s_median: float
    states: Mapping[str, int] = field(default_factory=dict)
    load: float | None = None


def run_metrics(run: SimulationResult) -> RunMetrics:
    """Computes the metrics of a run; times are NaN if no job has ended."""
    measured = run.measured_jobs
    completed = [job for job in measured if job.completed]
    times = np.array([job.jct for job in completed])
    waits = np.array([job.start - job.arrival for job in measured if job.start is not None])
    rho = finish_time_fairness(run)
    ends = [job.end for job in measured if job.end is not None]
    span = max(ends) - min(job.arrival for job in measured) if ends else float("nan")
    states: defaultdict[str, int] = defaultdict(int)
    for job in measured:
        states[job.state] += 1
    return RunMetrics(
        policy=run.policy,
        order=run.order,
        trace=run.trace,
        seed=run.seed,
        jobs=len(measured),
        finished=len(completed),
        avg_jct_s=_or_nan(np.mean, times),
        median_jct_s=_or_nan(np.median, times),
        p99_jct_s=_or_nan(lambda jcts: np.percentile(jcts, 99), times),
        makespan_s=span,
        gpu_utilization=_utilization(run, sum(job.useful for job in run.jobs), run.total_gpus),
        cpu_utilization=_utilization(run, sum(job.cpu_service for job in run.jobs), run.total_cpus),
        ftf_max=_or_nan(np.max, rho),
        ftf_mean=_or_nan(np.mean, rho),
        avg_wait_s=_or_nan(np.mean, waits),
        share_min=_share_min(run),
        stranded=_or_nan(np.mean, np.array([sample.stranded for sample in run.samples])),
        restarts=sum(job.restarts for job in measured),
        migrations=sum(job.migrations for job in measured),
        rounds=run.rounds,
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        decision_s_median=_or_nan(np.median, np.array(run.decisions)),
        states=dict(sorted(states.items())),
        load=run.load,
    )


def jct_cdf(run: SimulationResult) -> tuple[Floats, Floats]:
    """JCTs in seconds, ascending, and for each the fraction of the measured jobs with at most this JCT."""
    times = np.sort(np.array([job.jct for job in run.measured_jobs if job.completed]))
    return times, np.arange(1, len(times) + 1) / max(len(run.measured_jobs), 1)


def finish_time_fairness(run: SimulationResult) -> Floats:
    """Finish-time fairness of the measured jobs that completed (Themis, Mahajan et al., NSDI '20, section 3).

    JCT over the time on an equal share of the GPUs, given the mean number of jobs in the cluster during the job.
    """
    arrivals = np.array([job.arrival for job in run.jobs])
    last = max((job.end for job in run.jobs if job.end is not None), default=0.0)
    ends = np.array([last if job.end is None else job.end for job in run.jobs])
    first, stop = run.window or (0, len(run.jobs))
    indices = np.array([index for index in range(first, stop) if run.jobs[index].completed], dtype=int)
    work, gpus = np.array([job.work for job in run.jobs]), np.array([job.gpus for job in run.jobs])
    ratios = finish_time_ratios(arrivals, ends, work, gpus, run.total_gpus)
    return np.asarray(ratios[indices], dtype=np.float64)


def finish_time_ratios(arrivals: Floats, ends: Floats, work: Floats, gpus: Floats, total_gpus: float) -> Floats:
    """Finish-time fairness of all jobs of a cluster, as in `finish_time_fairness`: times in seconds, one entry a job.
    `work` is the seconds that a job takes alone."""
    if not len(arrivals):
        return np.zeros(0)
    times = np.maximum(ends - arrivals, 1e-9)
    present = (_cumulative_presence(arrivals, ends, ends) - _cumulative_presence(arrivals, ends, arrivals)) / times
    fair_times = work * np.maximum(1.0, gpus * present / total_gpus)
    return np.asarray(times / np.maximum(fair_times, 1e-9), dtype=np.float64)


def _cumulative_presence(arrivals: Floats, ends: Floats, until: Floats) -> Floats:
    """The job-seconds that all jobs together have spent in the cluster by each of these times."""
    arrived, ended = np.sort(arrivals), np.sort(ends)
    arrival_sums, end_sums = (np.concatenate(([0.0], np.cumsum(times))) for times in (arrived, ended))
    came, left = (np.searchsorted(times, until, "right") for times in (arrived, ended))
    return np.asarray(came * until - arrival_sums[came] - (left * until - end_sums[left]), dtype=np.float64)


def _utilization(run: SimulationResult, seconds: float, total: float) -> float:
    ends = (job.end for job in run.jobs if job.end is not None)
    span = max(ends, default=0.0) - min((job.arrival for job in run.jobs), default=0.0)
    return seconds / (span * total) if span * total > 0 else float("nan")


def _share_min(run: SimulationResult) -> float:
    service: defaultdict[str, float] = defaultdict(float)
    for job in run.measured_jobs:
        service[job.user] += job.service
    mean = sum(service.values()) / max(len(service), 1)
    return min(service.values()) / mean if mean else float("nan")


def _or_nan(summary: object, values: Floats) -> float:
    return float(summary(values)) if callable(summary) and len(values) else float("nan")
