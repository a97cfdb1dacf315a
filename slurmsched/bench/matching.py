"""How long one decision of Tesserae takes, stage by stage, and how that grows (Tesserae, figure 14)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Final

import numpy as np

from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae import Layout
from slurmsched.policies.tesserae.deciding import Question, Reading, decide
from slurmsched.policies.tesserae.layout import Floats
from slurmsched.policies.tesserae.seating import in_order

__all__ = ["MatchingTime", "growth", "time_matching"]

PERIOD: Final = 360.0
QUEUES: Final = (3600.0, 14400.0, 86400.0)
KINDS: Final = 26
"""Models, as many as Gavel's table has."""

_WIDTHS, _ODDS = (1, 2, 4, 8), (0.6, 0.3, 0.09, 0.01)
_WARM: Final = 2
_OLDEST: Final = 200_000.0


@dataclass(frozen=True, slots=True)
class MatchingTime:
    """Medians in seconds: of a whole decision and of its stages. `moved` jobs in a round, in the mean."""

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
class _Queue:
    """Jobs as they stand: GPU-seconds attained by each, and the last round."""

    gpus: Ints
    kind: Ints
    attained: Floats
    before: Layout


def time_matching(
    nodes: int, per_node: int, jobs: int, times: Iterable[int], *, as_published: bool = False
) -> MatchingTime:
    """Decide a round after the other, one for each of `times`; jobs attain service in between, so that the order
    changes. Widths are Tesserae's, queues those of `las`, pair rates made up."""
    random = np.random.default_rng(0)
    reading = Reading(in_order, lasting=False) if as_published else Reading()
    gpus = nodes * per_node
    together = random.uniform(0.7, 1.8, (KINDS, KINDS))
    weights = np.where(together > 1, together, 0.0)
    widths: Ints = np.minimum(random.choice(_WIDTHS, jobs, p=_ODDS), gpus)
    queue = _Queue(widths, random.integers(0, KINDS, jobs), random.uniform(0, _OLDEST, jobs), Layout.of(()))
    sizes: Ints = np.full(nodes, per_node)
    for _ in range(_WARM):
        _round(queue, weights, sizes, reading)
    spent, stages, pairs, moved = list[float](), defaultdict[str, list[float]](list), list[int](), list[int]()
    for _ in times:
        took, counts = _round(queue, weights, sizes, reading)
        for stage, seconds in took.items():
            stages[stage].append(seconds)
        spent.append(sum(took.values()))
        pairs.append(counts[0])
        moved.append(counts[1])
    slowest = quantiles(spent, n=20, method="inclusive")[-1] if len(spent) > 1 else spent[0]
    by_stage = {stage: median(seconds) for stage, seconds in stages.items()}
    means = float(np.mean(pairs)), float(np.mean(moved))
    return MatchingTime(gpus, jobs, nodes, len(spent), median(spent), slowest, by_stage, *means)


def _round(queue: _Queue, weights: Floats, sizes: Ints, reading: Reading) -> tuple[dict[str, float], tuple[int, int]]:
    """Seconds of each stage, and how many pairs and moves were decided."""
    took, last = dict[str, float](), perf_counter()

    def done(stage: str) -> None:
        nonlocal last
        now = perf_counter()
        took[stage] = now - last
        last = now

    places = np.searchsorted(QUEUES, queue.attained, "right")
    order = np.lexsort((np.arange(len(places)), places)).tolist()
    done("order")
    willing = np.ones(len(order), dtype=np.bool_)
    asked = Question(order, queue.gpus, queue.kind, willing, sizes, queue.before)
    decided = decide(asked, weights, reading, done)
    running = np.unique(decided.layout.jobs[decided.layout.jobs >= 0])
    queue.attained[running] += PERIOD * queue.gpus[running]
    queue.before = decided.layout
    return took, (len(decided.pairs), len(decided.moved))


def growth(measured: Sequence[MatchingTime]) -> float:
    """The power of the number of jobs by which the time grows, fitted to at least two sizes (least squares of the
    logarithms): 1.0 is in proportion."""
    sizes = np.log([one.jobs for one in measured])
    times = np.log([one.median_s for one in measured])
    return float(np.polyfit(sizes, times, 1)[0])
