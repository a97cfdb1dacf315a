"""A simulated cluster under two schedulers, side by side, and the workload of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from slurmsched.backends.simulated import (
    JobSubmitHook,
    SimulatedBackend,
    Submission,
    VirtualClock,
    VirtualCluster,
    profiled_speed,
)
from slurmsched.daemon.scheduler import RoundReport, SchedulerContext, schedule_round
from slurmsched.knowledge import Knowledge, shipped_profiles
from slurmsched.model import Gpu, Node, Request, Resources, Snapshot, SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.settings.definition import HookSettings, ManageSettings, Mode, Settings
from slurmsched.simulation.results import finish_time_ratios
from slurmsched.store.store import Store

GIB: Final = 1024
MINUTE: Final = 60.0
_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": ("alexnet", "resnet18", "shufflenet", "mobilenet", "resnet50"),
    "language": ("gnmt", "transformer", "lstm", "bert"),
    "speech": ("m5", "deepspeech"),
}


class WorkloadError(SynschedError):
    """An invalid cluster or workload; the message says what to write instead."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class WorkloadParameters:
    """Parameters of the workload. Weights are relative and need not add up to anything.

    `load` is the arriving work as a multiple of what all GPUs do at the GPU-proportional share. `scale` multiplies the
    paper's durations, so that a demo of some days fits into a minute. A time limit is the duration times a factor
    uniform between the two `limit_factors`. Jobs checkpoint every `checkpoint_every` seconds by themselves; a
    checkpoint takes `checkpoint_time` seconds. `pinned` is the probability that a job asks for one GPU type; others
    take any.
    """

    task_weights: Mapping[str, float] = field(default_factory=lambda: {"image": 50, "language": 30, "speech": 20})
    size_weights: Mapping[int, float] = field(default_factory=lambda: {1: 60, 2: 15, 4: 13, 8: 9, 16: 3})
    users: tuple[str, ...] = ("alice", "bob", "carol")
    load: float = 1.3
    scale: float = 0.1
    limit_factors: tuple[float, float] = (1.2, 3.0)
    checkpoint_every: float = 1800.0
    checkpoint_time: float = 20.0
    pinned: float = 0.2


@dataclass(frozen=True, slots=True)
class Arrival:
    """A submission and its time, in seconds after the start."""

    at: float
    submission: Submission


def cluster_nodes(spec: str, cpus: int = 24, memory: int = 500 * GIB) -> tuple[Node, ...]:
    """The nodes of `TYPE:NODESxGPUS,...`, such as `v100:2x8,p100:1x8`, all in partition `gpu`.

    Each node has `cpus` CPUs and `memory` MiB. Raises WorkloadError.
    """
    nodes: list[Node] = []
    for part in spec.split(","):
        gpu_type, _, size = part.strip().partition(":")
        count, _, gpus = size.partition("x")
        if not (gpu_type and count.isdecimal() and gpus.isdecimal() and int(count) and int(gpus)):
            raise WorkloadError(f"cluster '{part}': write TYPE:NODESxGPUS, as in v100:2x8,k80:1x8")
        nodes += (_node(f"{gpu_type}-{i}", gpu_type, int(gpus), cpus, memory) for i in range(1, int(count) + 1))
    if len({node.name for node in nodes}) < len(nodes):
        raise WorkloadError(f"cluster '{spec}': name each GPU type once")
    return tuple(nodes)


def _node(name: str, gpu_type: str, gpus: int, cpus: int, memory: int) -> Node:
    devices = tuple(Gpu(index, gpu_type) for index in range(gpus))
    total = Resources(gpus, cpus, memory)
    return Node(name, devices, total, Resources(), features=frozenset({gpu_type}), partitions=frozenset({"gpu"}))


def generate_arrivals(
    random: np.random.Generator, nodes: tuple[Node, ...], jobs: int, parameters: WorkloadParameters | None = None
) -> tuple[Arrival, ...]:
    """Generate `jobs` jobs in order of arrival, each requesting the GPU-proportional CPUs and memory, as by the usual
    defaults of sites. Equal generators give equal workloads. Raises WorkloadError."""
    parameters = parameters or WorkloadParameters()
    sizes = random.choice(list(parameters.size_weights), size=jobs, p=_normalised(parameters.size_weights.values()))
    durations = _durations(random, jobs) * parameters.scale
    rate = parameters.load * sum(len(node.gpus) for node in nodes) / float(np.mean(sizes * durations))
    times = np.cumsum(random.exponential(1 / rate, size=jobs)) if jobs else np.zeros(0)
    return tuple(
        Arrival(round(float(at), 3), _submission(random, nodes, int(gpus), round(float(duration), 3), parameters))
        for at, gpus, duration in zip(times, sizes, durations, strict=True)
    )


def _durations(random: np.random.Generator, jobs: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Durations at the GPU-proportional share in seconds, before `scale`."""
    long = random.random(jobs) >= 0.8  # noqa: PLR2004  # the paper's figures, as in the module's docstring
    exponent = np.where(long, random.uniform(3, 4, jobs), random.uniform(1.5, 3, jobs))
    return MINUTE * np.power(10.0, exponent)


def _submission(
    random: np.random.Generator, nodes: tuple[Node, ...], gpus: int, duration: float, parameters: WorkloadParameters
) -> Submission:
    gpu_type, per_node = _gpu_type_and_split(random, nodes, gpus)
    count = gpus // per_node
    node = next(node for node in nodes if gpu_type in node.gpu_types)
    share = node.proportional_share(per_node)
    task = str(random.choice(list(parameters.task_weights), p=_normalised(parameters.task_weights.values())))
    model = str(random.choice(_MODELS[task]))
    limit = duration * float(random.uniform(*parameters.limit_factors))
    return Submission(
        user=str(random.choice(parameters.users)),
        name=f"{model}-{gpus}",
        request=Request(
            gpus=gpus,
            gpu_type=gpu_type if random.random() < parameters.pinned else None,
            gpus_per_node=per_node,
            nodes=count,
            tasks=count,
            cpus=share.cpus * count,
            memory=share.memory,
        ),
        work=duration,
        time_limit=int(-(-limit // 600) * 600) + 600,
        comment=f"synsched:model={model},task={task},cpus=tune,ckpt=usr1@60",
        checkpoint_time=parameters.checkpoint_time,
        checkpoint_every=parameters.checkpoint_every,
    )


def _gpu_type_and_split(random: np.random.Generator, nodes: tuple[Node, ...], gpus: int) -> tuple[str, int]:
    """A random GPU type that fits `gpus` GPUs, weighted by its number of GPUs, and the GPUs per node."""
    fitting: dict[str, tuple[int, int]] = {}
    for gpu_type in sorted({gpu_type for node in nodes for gpu_type in node.gpu_types}):
        sizes = [len(node.gpus) for node in nodes if gpu_type in node.gpu_types]
        per_node = min(gpus, max(sizes))
        if gpus % per_node == 0 and sum(size >= per_node for size in sizes) >= gpus // per_node:
            fitting[gpu_type] = (sum(sizes), per_node)
    if not fitting:
        raise WorkloadError(f"no GPU type has {pluralise(gpus, 'GPU')}: write a larger cluster, or smaller jobs")
    chosen = str(random.choice(list(fitting), p=_normalised(size for size, _ in fitting.values())))
    return chosen, fitting[chosen][1]


def _normalised(weights: Iterable[float]) -> list[float]:
    weights = list(weights)
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True, slots=True)
class ClusterScore:
    """Metrics of a cluster. Times are in seconds, NaN if no job has finished; JCT (job completion time) is from
    submission to the end. `worst_fairness` is the highest finish-time fairness of a job that has finished.

    `makespan` is from the first submission to the last end. `useful` is the fraction of all GPU time in it spent on
    work that was kept: not idle, restarting, completing or lost. `work` is the work done, in GPU-seconds at the
    GPU-proportional share, per GPU-second of the makespan; it exceeds `useful` if more CPUs or memory made jobs faster.
    """

    jobs: int
    finished: int
    mean_jct: float
    median_jct: float
    p99_jct: float
    makespan: float
    worst_fairness: float
    useful: float
    work: float
    restarts: int
    rounds: int


def score_cluster(cluster: VirtualCluster, rounds: int = 0) -> ClusterScore:
    """The metrics of a cluster on which no job is left; `rounds` is the number of rounds that it had."""
    jobs = list(cluster.lifecycle.ended.values())
    done = [job for job in jobs if job.state_text == "COMPLETED" and job.end_time is not None]
    times = np.array([job.end_time - job.submit_time for job in done if job.end_time is not None])
    ends = [job.end_time for job in jobs if job.end_time is not None]
    makespan = max(ends) - min(job.submit_time for job in jobs) if jobs else float("nan")
    total_gpus = sum(len(node.configured.gpus) for node in cluster.nodes.values())
    available = makespan * total_gpus
    fairness = finish_time_ratios(
        np.array([job.submit_time for job in done]),
        np.array([job.end_time for job in done], dtype=np.float64),
        np.array([job.submission.work for job in done]),
        np.array([job.submission.request.gpus for job in done]),
        total_gpus,
    )
    return ClusterScore(
        jobs=len(jobs),
        finished=len(done),
        mean_jct=float(np.mean(times)) if done else float("nan"),
        median_jct=float(np.median(times)) if done else float("nan"),
        p99_jct=float(np.percentile(times, 99)) if done else float("nan"),
        makespan=makespan,
        worst_fairness=float(fairness.max()) if done else float("nan"),
        useful=sum(interval.gpus * interval.useful_seconds for interval in cluster.lifecycle.usage_intervals)
        / available,
        work=sum(job.submission.request.gpus * job.work.checkpointed for job in jobs) / available,
        restarts=sum(job.restarts for job in jobs),
        rounds=rounds,
    )


START_TIME: Final = 1_800_000_000.0
"""Where the virtual clocks start (unix seconds)."""


class RaceError(SynschedError):
    """The race cannot end: jobs are pending that can never start."""


@dataclass(frozen=True, slots=True)
class RaceFrame:
    """Both clusters at the end of a round. `elapsed` is in virtual seconds; `plain` is the cluster without rounds."""

    elapsed: float
    report: RoundReport
    plain: Snapshot


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The metrics of both clusters: `plain` without rounds, `rounds` with them."""

    plain: ClusterScore
    rounds: ClusterScore


@dataclass(slots=True)
class _ClusterWithClock:
    """A simulated cluster and its clock."""

    cluster: VirtualCluster
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START_TIME))


def demo_settings(settings: Settings | None = None) -> Settings:
    """The settings in mode enforce for all jobs of the demo's partition, whatever disable file this host has."""
    settings = settings or Settings()
    return replace(
        settings,
        rounds=replace(settings.rounds, mode=Mode.ENFORCE),
        manage=ManageSettings(partitions=("gpu",)),
        hook=HookSettings(disable_file="/dev/null/none"),
    )


def run_race(
    nodes: Sequence[Node],
    arrivals: Sequence[Arrival],
    settings: Settings | None = None,
    knowledge: Knowledge | None = None,
    *,
    on_round: Callable[[RaceFrame], None] = lambda _frame: None,
) -> RaceResult:
    """Run both clusters until every job has ended; `on_round` is called after each round.

    `knowledge`, by default the shipped profiles, is what the rounds use and also determines the simulated jobs' real
    speeds. Raises RaceError if jobs are pending that can never start.
    """
    settings = demo_settings(settings)
    knowledge = knowledge or shipped_profiles()
    speed = profiled_speed(knowledge, nodes)
    hook = JobSubmitHook(settings.manage, is_heartbeat_fresh=lambda _now: True)
    plain = _ClusterWithClock(VirtualCluster(nodes, start=START_TIME, speed=speed))
    scheduled = _ClusterWithClock(VirtualCluster(nodes, start=START_TIME, speed=speed, hook=hook))
    for arrival in arrivals:
        plain.cluster.submit(arrival.submission, START_TIME + arrival.at)
        scheduled.cluster.submit(arrival.submission, START_TIME + arrival.at)
    site = SchedulerContext(settings, SimulatedBackend(scheduled.cluster, scheduled.clock), knowledge.simulated())
    store = Store.in_memory(START_TIME)
    try:
        rounds = _run_rounds(site, store, scheduled, plain.cluster, on_round)
    finally:
        store.close()
    while plain.cluster.unfinished:
        _advance_to_next_event(plain.cluster)
    return RaceResult(score_cluster(plain.cluster), score_cluster(scheduled.cluster, rounds))


def _run_rounds(
    site: SchedulerContext,
    store: Store,
    scheduled: _ClusterWithClock,
    plain: VirtualCluster,
    on_round: Callable[[RaceFrame], None],
) -> int:
    """Run a round every period until no job is left; returns the number of rounds."""
    count = 0
    while scheduled.cluster.unfinished:
        due = scheduled.clock.now() + site.settings.rounds.period
        report = schedule_round(site, store, scheduled.clock)
        count += 1
        plain.advance(scheduled.clock.now())
        on_round(RaceFrame(scheduled.clock.now() - START_TIME, report, plain.snapshot()))
        if scheduled.cluster.events.next_time is None and not report.outcomes:
            raise _stuck_error(scheduled.cluster)
        scheduled.clock.advance_to(max(scheduled.clock.now(), due))
        scheduled.cluster.advance(scheduled.clock.now())
    return count


def _advance_to_next_event(cluster: VirtualCluster) -> None:
    if cluster.events.next_time is None:
        raise _stuck_error(cluster)
    cluster.advance(cluster.events.next_time)


def _stuck_error(cluster: VirtualCluster) -> RaceError:
    waiting = [job.id for job in cluster.snapshot().jobs]
    jobs = pluralise(len(waiting), "job")
    return RaceError(f"{jobs} can never run on this cluster (first: {waiting[0]}): submit smaller jobs")
