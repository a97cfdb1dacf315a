"""Measures the time and memory of the programs inside decisions.

Fragmentation gradient descent is measured per task, on openb's nodes and pods; Tesserae per stage (figure 14 of its
paper); Hadar on a cluster that grows with the queue (Sultana et al., figure 5); Gavel on jobs drawn as by its authors.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.arrays import Floats, Ints
from slurmsched.experiments.fgd.trace import draw_arrivals, read_nodes, read_tasks
from slurmsched.experiments.tesserae.round import TesseraeProblem, TesseraeVariant, allocate_in_order, plan_round
from slurmsched.knowledge import Knowledge
from slurmsched.policies.cluster.resources import FreeResources, Pools
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.objectives import GAVEL_POLICIES
from slurmsched.policies.gavel.problem import GavelProblem
from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob, ServerPools, slack_aware
from slurmsched.policies.place.fragmentation import FragmentationMeasure, TaskDemand, typical_workload
from slurmsched.policies.place.scores import FragmentationScore, PoolScoreTable, PricedFragmentationScore
from slurmsched.policies.tesserae.migration import PlacementPlan

_ARRIVAL_SEED = 42

_JOB_SPREAD: Final = (0.75, 1.25)
"""The factors between the rates of a model and those of one of its jobs."""


@dataclass(frozen=True, slots=True)
class PlacementTime:
    """Seconds of a decision with its placement, CPU seconds of all decisions, and the process's peak memory in MB."""

    policy: str
    nodes: int
    gpus: int
    decisions: int
    placed: int
    median_s: float
    p99_s: float
    mean_s: float
    total_cpu_s: float
    peak_rss_mb: float


def time_placements(
    data: Path, nodes: int | None, *, priced: bool = False, track_progress: Callable[[int], Iterable[int]] = range
) -> PlacementTime:
    """Places tasks of openb that ask for 130 % of the GPUs of `nodes` of its nodes, their list repeated or cut.

    `track_progress` iterates over the decisions. Raises TraceError.
    """
    trace_nodes = read_nodes(data / "openb_node_list_gpu_node.csv")
    repeated_nodes = tuple(islice(cycle(trace_nodes), nodes or len(trace_nodes)))
    tasks = read_tasks(data / "openb_pod_list_default.csv")
    copies = -(-len(repeated_nodes) // len(trace_nodes))
    all_tasks = list(chain.from_iterable([tasks] * copies))
    arrivals = draw_arrivals(_ARRIVAL_SEED, all_tasks, repeated_nodes)
    resources = FreeResources.of_empty_cluster(Pools(arrivals.nodes))
    measure = FragmentationMeasure(typical_workload(tasks), resources)
    scores = PoolScoreTable(
        resources, PricedFragmentationScore.of(measure) if priced else FragmentationScore(measure, rounded=True)
    )
    spent, placed, cpu = _place_all(scores, arrivals.tasks, track_progress)
    return PlacementTime(
        policy=scores.heuristic.name,
        nodes=len(repeated_nodes),
        gpus=int(resources.pools.device_count.sum()),
        decisions=len(arrivals.tasks),
        placed=placed,
        median_s=float(np.median(spent)),
        p99_s=float(np.percentile(spent, 99)),
        mean_s=float(spent.mean()),
        total_cpu_s=cpu,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _place_all(
    scores: PoolScoreTable, tasks: tuple[TaskDemand, ...], track_progress: Callable[[int], Iterable[int]]
) -> tuple[NDArray[np.float64], int, float]:
    seconds, placed, began = np.zeros(len(tasks)), 0, time.process_time()
    for index in track_progress(len(tasks)):
        start = time.perf_counter()
        placed += scores.place(tasks[index]) is not None
        seconds[index] = time.perf_counter() - start
    return seconds, placed, time.process_time() - began


ROUND_PERIOD: Final = 360.0
QUEUE_BOUNDS: Final = (3600.0, 14400.0, 86400.0)
JOB_TYPES: Final = 26
"""Models, as in Gavel's table."""

_TESSERAE_WIDTHS, _TESSERAE_ODDS = (1, 2, 4, 8), (0.6, 0.3, 0.09, 0.01)
_WARM_UP_ROUNDS: Final = 2
_MAX_ATTAINED: Final = 200_000.0


@dataclass(frozen=True, slots=True)
class MatchingTime:
    """Median seconds of a whole decision and of its stages; `pairs` and `moved` are mean counts per round."""

    gpus: int
    jobs: int
    nodes: int
    repeat: int
    median_s: float
    p95_s: float
    stages: Mapping[str, float]
    pairs: float
    moved: float


@dataclass(slots=True)
class _JobQueue:
    """The jobs, their attained service in GPU-seconds, and the placement of the last round."""

    gpus: Ints
    job_type: Ints
    attained_service: Floats
    previous: PlacementPlan


def time_matching(
    nodes: int, gpus_per_node: int, jobs: int, repetitions: Iterable[int], *, as_published: bool = False
) -> MatchingTime:
    """Decides one round for each of `repetitions`. Jobs attain service between rounds, so that their order changes.

    The numbers of GPUs are distributed as in Tesserae, the queues are those of `las`, the rates of pairs are random.
    """
    random = np.random.default_rng(0)
    variant = TesseraeVariant(allocate_in_order, keep_pairs=False) if as_published else TesseraeVariant()
    gpus = nodes * gpus_per_node
    combined_rates = random.uniform(0.7, 1.8, (JOB_TYPES, JOB_TYPES))
    weights = np.where(combined_rates > 1, combined_rates, 0.0)
    widths: Ints = np.minimum(random.choice(_TESSERAE_WIDTHS, jobs, p=_TESSERAE_ODDS), gpus)
    queue = _JobQueue(
        widths, random.integers(0, JOB_TYPES, jobs), random.uniform(0, _MAX_ATTAINED, jobs), PlacementPlan.from_rows(())
    )
    node_gpus: Ints = np.full(nodes, gpus_per_node)
    for _ in range(_WARM_UP_ROUNDS):
        _run_round(queue, weights, node_gpus, variant)
    seconds_by_round, stages, pairs, moved = (
        list[float](),
        defaultdict[str, list[float]](list),
        list[int](),
        list[int](),
    )
    for _ in repetitions:
        stage_seconds, counts = _run_round(queue, weights, node_gpus, variant)
        for stage, seconds in stage_seconds.items():
            stages[stage].append(seconds)
        seconds_by_round.append(sum(stage_seconds.values()))
        pairs.append(counts[0])
        moved.append(counts[1])
    slowest = (
        quantiles(seconds_by_round, n=20, method="inclusive")[-1] if len(seconds_by_round) > 1 else seconds_by_round[0]
    )
    by_stage = {stage: median(seconds) for stage, seconds in stages.items()}
    means = float(np.mean(pairs)), float(np.mean(moved))
    return MatchingTime(gpus, jobs, nodes, len(seconds_by_round), median(seconds_by_round), slowest, by_stage, *means)


def _run_round(
    queue: _JobQueue, weights: Floats, node_gpus: Ints, variant: TesseraeVariant
) -> tuple[dict[str, float], tuple[int, int]]:
    """Returns the seconds of each stage, and the numbers of pairs and of migrated jobs."""
    took, last = dict[str, float](), perf_counter()

    def on_stage(stage: str) -> None:
        nonlocal last
        now = perf_counter()
        took[stage] = now - last
        last = now

    queue_numbers = np.searchsorted(QUEUE_BOUNDS, queue.attained_service, "right")
    order = np.lexsort((np.arange(len(queue_numbers)), queue_numbers)).tolist()
    on_stage("order")
    may_share = np.ones(len(order), dtype=np.bool_)
    problem = TesseraeProblem(order, queue.gpus, queue.job_type, may_share, node_gpus, queue.previous)
    plan = plan_round(problem, weights, variant, on_stage)
    running = np.unique(plan.placement.jobs[plan.placement.jobs >= 0])
    queue.attained_service[running] += ROUND_PERIOD * queue.gpus[running]
    queue.previous = plan.placement
    return took, (len(plan.pairs), len(plan.migrated))


def growth(measured: Sequence[MatchingTime]) -> float:
    """Returns the exponent k of time ~ jobs^k, by least squares of the logarithms of at least two sizes."""
    sizes = np.log([time.jobs for time in measured])
    times = np.log([time.median_s for time in measured])
    return float(np.polyfit(sizes, times, 1)[0])


HADAR_JOBS_PER_GPU: Final = 8
"""As in Hadar's evaluation with 480 jobs on 60 GPUs."""

GPUS_PER_SERVER: Final = 4
_RELATIVE_SPEED: Final = {"v100": 1.0, "p100": 0.6, "k80": 0.2}
_MODEL_COUNT: Final = 26
"""As in Gavel's table. Jobs of the same model and number of GPUs have the same throughput."""

_GANG_WIDTHS, _GANG_ODDS = (1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05)
_JOB_HOURS: Final = (0.5, 100.0)


@dataclass(frozen=True, slots=True)
class PricingTime:
    """Wall seconds of one whole decision with `running` jobs of the previous one, the median CPU seconds, and the
    process's peak memory in MB."""

    policy: str
    jobs: int
    gpus: int
    running: int
    repeat: int
    median_s: float
    p95_s: float
    cpu_s: float
    peak_rss_mb: float


def time_pricing(jobs: int, repetitions: Iterable[int], seed: int = 0, *, all_different: bool = False) -> PricingTime:
    """Decides on an empty cluster, replaces an eighth of the running jobs by new ones, and then measures decisions.

    There is one measurement for each of `repetitions`. Each decision computes two allocations: one that keeps all
    leases, and one from an empty cluster. With `all_different` no two jobs have the same throughput, as live once jobs
    have measured themselves.
    """
    pools, random, scheduler = (
        _server_pools(jobs),
        np.random.default_rng(seed),
        HadarScheduler(make_utility=slack_aware),
    )
    queue = _draw_hadar_jobs(jobs, pools, random, all_different=all_different)
    allocations = scheduler.decide(queue, pools)
    ended = {job for job in allocations if random.random() < 1 / 8}
    new_jobs = _draw_hadar_jobs(len(ended), pools, random, first=jobs, all_different=all_different)
    queue = [job for job in queue if job.job not in ended] + new_jobs
    running = {job: allocation for job, allocation in allocations.items() if job not in ended}
    seconds: list[float] = []
    cpu: list[float] = []
    for _ in repetitions:
        began, spent = perf_counter(), process_time()
        scheduler.decide(queue, pools, running)
        seconds.append(perf_counter() - began)
        cpu.append(process_time() - spent)
    slowest = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = int(pools.capacity.sum())
    return PricingTime("hadar", jobs, total, len(running), len(seconds), median(seconds), slowest, median(cpu), peak)


def _server_pools(jobs: int) -> ServerPools:
    """Returns servers with a third of the GPUs of each type."""
    total = max(jobs // HADAR_JOBS_PER_GPU, len(_RELATIVE_SPEED))
    servers: list[tuple[str, int]] = []
    for index, gpu_type in enumerate(_RELATIVE_SPEED):
        left = total // len(_RELATIVE_SPEED) + (index < total % len(_RELATIVE_SPEED))
        while left > 0:
            servers.append((gpu_type, min(left, GPUS_PER_SERVER)))
            left -= GPUS_PER_SERVER
    return ServerPools.of_single_type(servers)


def _draw_hadar_jobs(
    jobs: int, pools: ServerPools, random: np.random.Generator, first: int = 0, *, all_different: bool = False
) -> list[HadarJob]:
    models = np.random.default_rng(_MODEL_COUNT).uniform(0.3, 1.0, (_MODEL_COUNT, len(pools.types)))
    throughputs: dict[GangThroughput, GangThroughput] = {}
    drawn: list[HadarJob] = []
    for number in range(first, first + jobs):
        width = min(int(random.choice(_GANG_WIDTHS, p=_GANG_ODDS)), int(pools.capacity.sum()))
        model = models[int(random.integers(_MODEL_COUNT))]
        if all_different:
            model = model * random.uniform(*_JOB_SPREAD, len(model))
        consolidated = tuple(
            width * part * _RELATIVE_SPEED[kind] for part, kind in zip(model.tolist(), pools.types, strict=True)
        )
        throughput = GangThroughput(width, consolidated, tuple(0.8 * rate for rate in consolidated))
        work = float(random.uniform(*_JOB_HOURS)) * 3600 * consolidated[0]
        drawn.append(HadarJob(f"j{number}", throughputs.setdefault(throughput, throughput), work, work))
    return drawn


BENCHED_POLICIES: Final[Mapping[str, str]] = {
    "las": "max_min_fairness_perf",
    "ftf": "finish_time_fairness_perf",
    "makespan": "min_total_duration_perf",
    "throughput": "max_sum_throughput_perf",
    "packed": "max_min_fairness_packed",
}
"""Names of Gavel's policies by the short names of `bench gavel --policy`."""

_GPU_TYPES: Final = ("v100", "p100", "k80")
_GPU_COUNTS: Final = (86, 85, 85)
_GAVEL_WIDTHS: Final = (1, 2, 4, 8)
_GAVEL_ODDS: Final = (0.7, 0.1, 0.15, 0.05)
_LONG_JOB_PART: Final = 0.2
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TimeFractionsTime:
    """Median wall and CPU seconds of computing the time fractions, the objective's value, and peak memory in MB."""

    policy: str
    jobs: int
    gpus: int
    repeat: int
    median_s: float
    cpu_s: float
    level: float
    peak_rss_mb: float


def time_fractions(
    rates: Knowledge, policy: str, jobs: int, repetitions: Iterable[int], seed: int = 2, *, all_different: bool = False
) -> TimeFractionsTime:
    """Measures Gavel's time fractions on 256 GPUs of three types.

    Jobs have 1 to 8 GPUs, or only one if jobs are packed, as in the authors' measurement. All jobs have run for a
    while, so that they differ under finish-time fairness. With `all_different` no two have the same rates, as live once
    jobs have measured themselves. Raises PolicyError if `rates` has no rates for these types.
    """
    gavel_policy = GAVEL_POLICIES[BENCHED_POLICIES[policy]]
    random = np.random.default_rng(seed)
    problem = _draw_gavel_problem(rates, jobs, random, packed=gavel_policy.packed)
    if all_different:
        problem = _differing(problem, random)
    wall: list[float] = []
    cpu: list[float] = []
    level = 0.0
    for _ in repetitions:
        began, spent = perf_counter(), process_time()
        level = gavel_policy.time_fractions(problem, _GPU_TYPES).objective_value
        wall.append(perf_counter() - began)
        cpu.append(process_time() - spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return TimeFractionsTime(policy, jobs, sum(_GPU_COUNTS), len(wall), median(wall), median(cpu), level, peak)


def _differing(problem: GavelProblem, random: np.random.Generator) -> GavelProblem:
    """Returns the problem with each job's rates on each type changed by up to a quarter, alone and beside others."""
    factor, types = random.uniform(*_JOB_SPREAD, problem.rates.shape), problem.job_types
    colocated = problem.colocated_rates
    if problem.packed:
        colocated = colocated[np.ix_(types, types)] * factor[:, None, :]
    return replace(problem, rates=problem.rates * factor, job_types=np.arange(len(types)), colocated_rates=colocated)


def _draw_gavel_problem(rates: Knowledge, jobs: int, random: np.random.Generator, *, packed: bool) -> GavelProblem:
    models = [model for model, profile in rates.models.items() if profile.scaling.keys() >= {*_GPU_TYPES}]
    if not models:
        raise PolicyError("no model has rates on v100, p100 and k80: give Gavel's throughputs.json with --profiles")
    scaling = [rates.models[model].scaling for model in models]
    multi_gpu_models = [index for index, by_type in enumerate(scaling) if by_type["v100"].gpus[-1] > 1]
    widths = (
        random.choice(_GAVEL_WIDTHS, size=jobs, p=_GAVEL_ODDS)
        if multi_gpu_models and not packed
        else np.ones(jobs, dtype=np.int64)
    )
    job_types = np.where(
        widths > 1, random.choice(multi_gpu_models or [0], size=jobs), random.integers(len(models), size=jobs)
    )
    minutes = 10 ** np.where(
        random.random(jobs) < _LONG_JOB_PART, random.uniform(3, 4, jobs), random.uniform(1.5, 3, jobs)
    )
    problem = GavelProblem.of(
        np.array(_GPU_COUNTS, dtype=np.float64),
        np.array(
            [
                [scaling[kind][gpu_type].rate_at(int(width)) for gpu_type in _GPU_TYPES]
                for kind, width in zip(job_types, widths, strict=True)
            ]
        ),
        widths.astype(np.float64),
    )
    problem = replace(
        problem,
        remaining=minutes * 60 * problem.rates[:, 0],
        elapsed=random.uniform(0, 10 * _HOUR, jobs),
        isolated_time=random.uniform(0, _HOUR, jobs),
        job_types=job_types.astype(np.int64),
    )
    if not packed:
        return problem
    colocated = [
        [[by_type[w].rate_at(1) * by_type[w].beside.get(other, 0.0) for w in _GPU_TYPES] for other in models]
        for by_type in scaling
    ]
    return replace(problem, colocated_rates=np.array(colocated))
