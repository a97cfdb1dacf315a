"""Synergy-Opt's ideal allocation (section 4.1.1, equations 1 to 5; appendix A.1.2): an integer program over the
sensitivity matrices, with the CPUs and memory of all servers in one pool.

Jobs of one kind are alike, so the program counts how many of a kind get each point of its matrix instead of choosing
for each job: its size does not grow with the cluster. The objective is the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from slurmsched.policies.errors import PolicyError

__all__ = ["Kind", "Pooled", "most_throughput"]

_REMEMBERED: Final = 4096
"""Questions whose answers are kept: from round to round the kinds that run are mostly the same."""

_GAP: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Kind:
    """`count` jobs of one model and width. `cpus`, `memory` and `speed` are parallel: what a whole job has at each
    point of the matrix, and how fast it is there; `fair` is the speed that it must at least have (equation 5)."""

    count: int
    cpus: tuple[float, ...]
    memory: tuple[float, ...]
    speed: tuple[float, ...]
    fair: float


def most_throughput(kinds: Sequence[Kind], cpus: float, memory: float) -> tuple[tuple[int, ...], ...]:
    """How many jobs of each kind get each of its points, so that all jobs together are fastest; each row sums to the
    kind's count. `cpus` and `memory` are what the servers have in all.

    Raises PolicyError where not even the fair speeds can be had.
    """
    useful = [_useful(kind) for kind in kinds]
    columns = [(row, point) for row, points in enumerate(useful) for point in points]
    if not columns:
        return tuple(() for _ in kinds)
    amounts = np.array(
        [(kinds[row].cpus[point], kinds[row].memory[point], kinds[row].speed[point]) for row, point in columns]
    )
    rows = np.array([row for row, _ in columns])
    counts = np.array([kind.count for kind in kinds], dtype=float)
    each_once = csr_matrix((np.ones(len(columns)), (rows, np.arange(len(columns)))), shape=(len(kinds), len(columns)))
    answer = milp(
        -amounts[:, 2],
        integrality=np.ones(len(columns), dtype=np.int64),
        bounds=Bounds(0, counts[rows]),
        constraints=(
            LinearConstraint(each_once, counts, counts),
            LinearConstraint(amounts[:, :2].T, -np.inf, (cpus, memory)),
        ),
        options={"mip_rel_gap": _GAP},
    )
    if answer.x is None:
        raise PolicyError(f"no allocation gives every job its fair speed: {answer.message}")
    found = [[0] * len(kind.speed) for kind in kinds]
    for (row, point), number in zip(columns, answer.x, strict=True):
        found[row][point] = round(number)
    return tuple(tuple(row) for row in found)


def _useful(kind: Kind) -> list[int]:
    """Points that are fast enough and that no other point beats with as little of both."""
    fast = [point for point, speed in enumerate(kind.speed) if speed >= kind.fair]
    # As much speed as can be first; among equals the frugal first, so that only what comes before can dominate.
    fast.sort(key=lambda point: (-kind.speed[point], kind.cpus[point], kind.memory[point]))
    kept: list[int] = []
    for point in fast:
        if not any(kind.cpus[other] <= kind.cpus[point] and kind.memory[other] <= kind.memory[point] for other in kept):
            kept.append(point)
    return kept


@dataclass(slots=True)
class Pooled:
    """`most_throughput` for servers that have so much in all, which remembers its latest answers."""

    cpus: float
    memory: float
    _answers: OrderedDict[tuple[Kind, ...], tuple[tuple[int, ...], ...]] = field(default_factory=OrderedDict)

    def most_throughput(self, kinds: Sequence[Kind]) -> tuple[tuple[int, ...], ...]:
        """As the function. Raises PolicyError."""
        question = tuple(kinds)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = most_throughput(question, self.cpus, self.memory)
            if len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(question)
        return answer
