"""How long fragmentation gradient descent takes for one task, on openb's nodes and pods."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slurmsched.experiments.fgd.openb import read_servers, read_tasks
from slurmsched.experiments.fgd.sequence import drawn
from slurmsched.policies.placing.fragmentation import Descent, Idle, Measure, PricedDescent, Scores, Task, typical

__all__ = ["PlacementTime", "time_placements"]

_SEED = 42


@dataclass(frozen=True, slots=True)
class PlacementTime:
    """Seconds for a decision and its placement; CPU seconds of all; the process's peak memory in MB."""

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
    data: Path, nodes: int | None, *, priced: bool = False, tracked: Callable[[int], Iterable[int]] = range
) -> PlacementTime:
    """Fill a cluster of so many of openb's nodes, their list repeated or cut, to 130 % of its GPUs.

    `tracked` goes through the decisions. Raises TraceError.
    """
    listed = read_servers(data / "openb_node_list_gpu_node.csv")
    servers = tuple(islice(cycle(listed), nodes or len(listed)))
    tasks = read_tasks(data / "openb_pod_list_default.csv")
    times = -(-len(servers) // len(listed))
    every = list(chain.from_iterable([tasks] * times))
    arrivals = drawn(_SEED, every, servers)
    idle = Idle(arrivals.servers)
    measure = Measure(typical(tasks), idle)
    scores = Scores(idle, PricedDescent(measure) if priced else Descent(measure, rounded=True))
    spent, placed, cpu = _spent(scores, arrivals.tasks, tracked)
    return PlacementTime(
        policy=scores.heuristic.name,
        nodes=len(servers),
        gpus=int(idle.count.sum()),
        decisions=len(arrivals.tasks),
        placed=placed,
        median_s=float(np.median(spent)),
        p99_s=float(np.percentile(spent, 99)),
        mean_s=float(spent.mean()),
        total_cpu_s=cpu,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _spent(
    scores: Scores, tasks: tuple[Task, ...], tracked: Callable[[int], Iterable[int]]
) -> tuple[NDArray[np.float64], int, float]:
    spent, placed, began = np.zeros(len(tasks)), 0, time.process_time()
    for place in tracked(len(tasks)):
        start = time.perf_counter()
        placed += scores.place(tasks[place]) is not None
        spent[place] = time.perf_counter() - start
    return spent, placed, time.process_time() - began
