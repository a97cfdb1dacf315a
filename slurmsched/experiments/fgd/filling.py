"""A cluster filled task by task, and the curves the paper draws of it. Nobody leaves; what does not fit is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.experiments.fgd.sequence import Arrivals
from slurmsched.policies.placing.fragmentation import Idle, Measure, Scores, Workload

__all__ = ["POINTS", "Filled", "Placing", "fill"]

Floats = NDArray[np.float64]

POINTS = 131
"""From 0 to 130 % of the GPUs asked for."""

Placing = Callable[[Idle, Measure], Scores]
"""Makes what places tasks on a cluster, for a target workload."""


@dataclass(frozen=True, slots=True)
class Filled:
    """`allocated` and `fragment` are by per cent of the GPUs that have been asked for, in per cent of all GPUs;
    [POINTS]. `failed` tasks found no place. `moves` is how many running tasks were moved. `cpu_s` is what all decisions
    took."""

    allocated: Floats
    fragment: Floats
    failed: int
    moves: int
    decisions: int
    cpu_s: float


def fill(arrivals: Arrivals, workload: Workload, placing: Placing) -> Filled:
    """Raises PolicyError."""
    idle = Idle(arrivals.servers)
    measure = Measure(workload, idle)
    scores = placing(idle, measure)
    of_node = measure.amount(np.arange(len(idle)))
    free, fragment, seen = int(idle.gpus.sum()), float(of_node.sum()), 0
    capacity, asked, failed = free, 0, 0
    samples = np.zeros((len(arrivals.tasks), 3))
    began = time.process_time()
    for place, task in enumerate(arrivals.tasks):
        asked += task.demand
        if scores.place(task) is None:
            failed += 1
        else:
            free -= task.demand
        if seen < len(idle.log):
            changed = np.unique(idle.log[seen:])
            seen = len(idle.log)
            after = measure.amount(changed)
            fragment += float((after - of_node[changed]).sum())
            of_node[changed] = after
        samples[place] = asked, capacity - free, fragment
    spent = time.process_time() - began
    samples *= 100 / capacity
    allocated = _curve(samples[:, 0], np.round(samples[:, 1], 2))
    moves = getattr(scores, "moves", 0)
    return Filled(allocated, _curve(samples[:, 0], samples[:, 2]), failed, moves, len(arrivals.tasks), spent)


def _curve(asked: Floats, values: Floats) -> Floats:
    """The mean of the samples that round to each per cent, of its neighbours where there is none, to two digits."""
    at = np.rint(asked)
    found = np.zeros(POINTS)
    for point in range(POINTS):
        there = at == point
        if not there.any():
            there = np.abs(at - point) <= 1
        found[point] = np.round(values[there].mean(), 2) if there.any() else np.nan
    return found
