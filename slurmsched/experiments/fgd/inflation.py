"""Fills a cluster task by task under each heuristic: Monte-Carlo inflation (Weng et al., ATC 2023, section 6.1), in
which no task ends, and a steady state, in which tasks end as others arrive. A task that does not fit is dropped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.experiments.fgd.baselines import (
    BestFit,
    ClusteringScoreTable,
    DotProduct,
    ExactDescent,
    GpuPacking,
    MigratingScoreTable,
    RandomPoolScoreTable,
)
from slurmsched.experiments.fgd.trace import Arrivals, draw_arrivals, read_nodes, read_tasks, recorded_arrivals
from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.place.fragmentation import FragmentationMeasure, TargetWorkload, TaskDemand, typical_workload
from slurmsched.policies.place.scores import (
    FragmentationScore,
    PoolScoreTable,
    PricedFragmentationScore,
    idle_gpu_worth,
)
from slurmsched.policies.place.worth import IdleWorth, LeastLossTable

CURVE_POINTS = 131
"""Points of a curve, from 0 to 130 % of GPUs requested."""

_STOCK_UNIT: Final = 10
"""Unit of the sizes in the cutting-stock program of `idle_gpu_worth`, in milli-GPU."""

ScoreTableFactory = Callable[[FreeResources, FragmentationMeasure], PoolScoreTable]
"""Makes the score table that places tasks on a cluster."""


@dataclass(frozen=True, slots=True)
class InflationResult:
    """The curves and counts of one run.

    `allocated` and `fragmentation` are in per cent of all GPUs by per cent of GPUs requested, of shape [CURVE_POINTS].
    `unplaced` tasks did not fit, `moves` running tasks were migrated, `cpu_s` is the CPU time of all decisions.
    """

    allocated: Floats
    fragmentation: Floats
    unplaced: int
    moves: int
    decisions: int
    cpu_s: float


def inflate(arrivals: Arrivals, workload: TargetWorkload, make_scores: ScoreTableFactory) -> InflationResult:
    """Places all arrivals and returns the curves. Raises PolicyError."""
    resources = FreeResources.of_empty_cluster(Pools(arrivals.nodes))
    measure = FragmentationMeasure(workload, resources)
    table = make_scores(resources, measure)
    fragment_of_node = measure.amount(np.arange(len(resources.pools)))
    free, fragmentation, seen = int(resources.milli.sum()), float(fragment_of_node.sum()), 0
    capacity, requested, unplaced = free, 0, 0
    samples = np.zeros((len(arrivals.tasks), 3))
    began = time.process_time()
    for index, task in enumerate(arrivals.tasks):
        requested += task.total_milli_gpu
        if table.place(task) is None:
            unplaced += 1
        else:
            free -= task.total_milli_gpu
        if seen < len(resources.changed_nodes):
            changed = np.unique(resources.changed_nodes[seen:])
            seen = len(resources.changed_nodes)
            after = measure.amount(changed)
            fragmentation += float((after - fragment_of_node[changed]).sum())
            fragment_of_node[changed] = after
        samples[index] = requested, capacity - free, fragmentation
    spent = time.process_time() - began
    samples *= 100 / capacity
    allocated = _curve_by_percent(samples[:, 0], np.round(samples[:, 1], 2))
    moves = getattr(table, "moves", 0)
    return InflationResult(
        allocated, _curve_by_percent(samples[:, 0], samples[:, 2]), unplaced, moves, len(arrivals.tasks), spent
    )


def mix_preserving_bound(tasks: Sequence[TaskDemand]) -> float:
    """Returns the most per cent of all GPUs that can be allocated if tasks run in the proportions of this list.

    The GPUs that parts of a GPU need at least are a cutting-stock program (Gilmore and Gomory, 1961), and whole GPUs
    hold nothing else. CPUs, memory, types and nodes are ignored, so that no placement allocates more; choosing which
    tasks get in can. Raises ExperimentError for parts that are no multiple of the program's unit, and PolicyError.
    """
    workload = typical_workload(tasks, coverage=1.0)
    if any(task.shares_gpu and task.milli_per_gpu % _STOCK_UNIT for task in workload.tasks):
        raise ExperimentError(f"no bound for parts of a GPU that are no multiple of {_STOCK_UNIT} milli-GPU")
    worth, allocated, needed = idle_gpu_worth(workload), 0.0, 0.0
    for task, popularity in zip(workload.tasks, workload.popularity, strict=True):
        allocated += popularity * task.total_milli_gpu / MILLI_PER_GPU
        needed += popularity * (worth[task.milli_per_gpu] if task.shares_gpu else task.gpus)
    return float(100 * allocated / needed)


def steady_allocation(
    arrivals: Arrivals, workload: TargetWorkload, make_scores: ScoreTableFactory, load: float
) -> float:
    """Returns the mean per cent of all GPUs allocated over the second half of all arrivals, in which tasks also end.

    Tasks arrive one after the other, in a Poisson process that requests `load` times the GPUs in the mean, and run for
    times from an exponential distribution; both are drawn from a stream of their own, and are alike for all heuristics.
    """
    resources = FreeResources.of_empty_cluster(Pools(arrivals.nodes))
    table = make_scores(resources, FragmentationMeasure(workload, resources))
    random, count = np.random.default_rng(len(arrivals.tasks)), len(arrivals.tasks)
    capacity = int(resources.milli.sum())
    mean_milli = np.mean([task.total_milli_gpu for task in arrivals.tasks])
    times = np.cumsum(random.exponential(mean_milli / (load * capacity), count)).tolist()
    run_times = random.exponential(1.0, count).tolist()
    ends, allocated, area, last = list[tuple[float, int, Allocation, int]](), 0, 0.0, times[count // 2]
    for index, (task, now, run_time) in enumerate(zip(arrivals.tasks, times, run_times, strict=True)):
        while ends and ends[0][0] <= now:
            end, _, allocation, milli = heappop(ends)
            area += allocated * max(0.0, end - last)
            last = max(last, end)
            resources.release(allocation)
            allocated -= milli
        area += allocated * max(0.0, now - last)
        last = max(last, now)
        placed = table.place(task)
        if placed is not None:
            heappush(ends, (now + run_time, index, placed, task.total_milli_gpu))
            allocated += task.total_milli_gpu
    return float(100 * area / (capacity * (last - times[count // 2])))


def _curve_by_percent(requested: Floats, values: Floats) -> Floats:
    """Returns the mean of the samples that round to each per cent, or of its neighbours if there are none."""
    percent = np.rint(requested)
    curve = np.zeros(CURVE_POINTS)
    for point in range(CURVE_POINTS):
        matching = percent == point
        if not matching.any():
            matching = np.abs(percent - point) <= 1
        curve[point] = np.round(values[matching].mean(), 2) if matching.any() else np.nan
    return curve


MAX_MOVES: Final = 100
"""Most migrations of `fgd_moving` in a run of about 10,900 arrivals."""

PUBLISHED_POLICIES: Final[Mapping[str, str]] = {
    "fgd": "FGD",
    "best_fit": "BestFit",
    "gpu_packing": "GpuPacking",
    "clustering": "GpuClustering",
    "dot_product": "DotProd",
    "random_fit": "Random",
}
"""The paper's names of its policies."""

_SCORE_TABLES: Final[Mapping[str, ScoreTableFactory]] = {
    "fgd": lambda idle, measure: PoolScoreTable(idle, FragmentationScore(measure, rounded=True)),
    "fgd_argmin": lambda idle, measure: PoolScoreTable(idle, ExactDescent(measure)),
    "fgd_priced": lambda idle, measure: PoolScoreTable(idle, PricedFragmentationScore.of(measure)),
    "fgd_moving": lambda idle, measure: MigratingScoreTable(
        idle, PricedFragmentationScore.of(measure), max_moves=MAX_MOVES
    ),
    "best_fit": lambda idle, _measure: PoolScoreTable(idle, BestFit(rounded=True)),
    "gpu_packing": lambda idle, _measure: PoolScoreTable(idle, GpuPacking()),
    "clustering": lambda idle, _measure: ClusteringScoreTable(idle),
    "dot_product": lambda idle, _measure: PoolScoreTable(idle, DotProduct(rounded=True)),
}


def score_table_factory(name: str, seed: int, tasks: Sequence[TaskDemand] = ()) -> ScoreTableFactory:
    """Returns the factory of a policy's score table; the paper's policies round scores. Raises KeyError.

    `tasks` are the list, of which `unified` and `unified_slurm` know all tasks, with their memory, and the others the
    typical ones. The latter leaves the device of a shared task to Slurm, as a site does.
    """
    if name in {"unified", "unified_slurm"}:
        slurm = name == "unified_slurm"
        return lambda idle, _measure: LeastLossTable.of(IdleWorth(Counter(tasks), idle.pools), idle, slurm)
    if name == "random_fit":
        random = np.random.default_rng([seed, 1])
        return lambda idle, _measure: RandomPoolScoreTable(idle, random)
    return _SCORE_TABLES[name]


@dataclass(frozen=True, slots=True)
class InflationConfig:
    """One run. With `sequences_file` the arrivals are the authors', if the file has the seed."""

    policy: str
    seed: int
    pods_file: Path
    nodes_file: Path
    sequences_file: Path | None = None
    load: float | None = None
    """GPUs that running tasks request in a steady state, relative to the cluster's; None for an inflation."""


def run_inflations(
    configs: Sequence[InflationConfig], setup: ExperimentSetup, label: str
) -> Mapping[InflationConfig, InflationResult]:
    """Runs all configurations on all cores. Raises ExperimentError, TraceError."""
    return setup.run_all(_run_config, configs, label)


def run_steady_states(
    configs: Sequence[InflationConfig], setup: ExperimentSetup, label: str
) -> Mapping[InflationConfig, float]:
    """Returns the mean allocation in per cent of every configuration, which has a load. Raises TraceError."""
    return setup.run_all(_run_steady_state, configs, label)


STEADY_ARRIVALS: Final = 30_000
"""Tasks of a steady state, about three times as many as run at a time."""


def _run_steady_state(config: InflationConfig) -> float:
    tasks, nodes = read_tasks(config.pods_file), read_nodes(config.nodes_file)
    random = np.random.default_rng(config.seed)
    arriving = tuple(tasks[index] for index in random.integers(len(tasks), size=STEADY_ARRIVALS).tolist())
    shuffled = tuple(nodes[index] for index in random.permutation(len(nodes)).tolist())
    make_scores = score_table_factory(config.policy, config.seed, tasks)
    return steady_allocation(Arrivals(arriving, shuffled), typical_workload(tasks), make_scores, config.load or 1.0)


def _run_config(config: InflationConfig) -> InflationResult:
    tasks, nodes = read_tasks(config.pods_file), read_nodes(config.nodes_file)
    arrivals = recorded_arrivals(config.sequences_file, config.seed, tasks, nodes) if config.sequences_file else None
    return inflate(
        arrivals or draw_arrivals(config.seed, tasks, nodes),
        typical_workload(tasks),
        score_table_factory(config.policy, config.seed, tasks),
    )
