"""Synergy-Opt where GPU types differ (appendix A.2, equations 22 to 26): a job gets a type, and a point of its matrix
there. In one round it is not split over types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.synergy.spreading import Amount

__all__ = ["Choice", "MixedKind", "most_throughput_mixed", "rounds_of_mixed"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A point of a job's matrix on one GPU type (its place among the pools): whole-job CPUs and memory, speed."""

    pool: int
    cpus: float
    memory: float
    speed: float


@dataclass(frozen=True, slots=True)
class MixedKind:
    """`count` jobs alike: their GPUs, what they may be given, and the speed that a fair allocation would give them."""

    count: int
    gpus: int
    choices: tuple[Choice, ...]
    fair: float


def most_throughput_mixed(kinds: Sequence[MixedKind], pools: Sequence[Amount]) -> tuple[tuple[int, ...], ...]:
    """How many jobs of each kind get each of its choices, so that all together are fastest. `pools` are what all
    servers of each GPU type have together.

    Raises PolicyError where not every job can have its fair speed on one type.
    """
    columns = [
        (row, place)
        for row, kind in enumerate(kinds)
        for place, choice in enumerate(kind.choices)
        if choice.speed >= kind.fair
    ]
    found = [[0] * len(kind.choices) for kind in kinds]
    if any(not any(row == other for other, _ in columns) for row in range(len(kinds))):
        raise PolicyError("no allocation gives every job its fair speed: a job has no choice that is fast enough")
    if columns:
        for (row, place), number in zip(columns, _solved(kinds, pools, columns), strict=True):
            found[row][place] = number
    return tuple(tuple(row) for row in found)


def rounds_of_mixed(queue: Sequence[MixedKind], pools: Sequence[Amount]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Each kind of the queue in turn with what those before it have left ("improving utilization"): an answer for each,
    all zeros where it does not fit any more."""
    left, answers = list(pools), []
    for kind in queue:
        answer: tuple[tuple[int, ...], ...] = (tuple(0 for _ in kind.choices),)
        for count in range(kind.count, 0, -1):
            try:
                answer = most_throughput_mixed([replace(kind, count=count)], left)
            except PolicyError:
                continue
            break
        for number, choice in zip(answer[0], kind.choices, strict=True):
            pool = left[choice.pool]
            left[choice.pool] = Amount(
                pool.gpus - number * kind.gpus, pool.cpus - number * choice.cpus, pool.memory - number * choice.memory
            )
        answers.append(answer)
    return tuple(answers)


def _solved(kinds: Sequence[MixedKind], pools: Sequence[Amount], columns: Sequence[tuple[int, int]]) -> list[int]:
    chosen = [(kinds[row], kinds[row].choices[place], row) for row, place in columns]
    once = np.zeros((len(kinds), len(columns)))
    used = np.zeros((3 * len(pools), len(columns)))
    for column, (kind, choice, row) in enumerate(chosen):
        once[row, column] = 1
        used[3 * choice.pool : 3 * choice.pool + 3, column] = kind.gpus, choice.cpus, choice.memory
    counts = np.array([kind.count for kind in kinds], dtype=float)
    answer = milp(
        [-choice.speed for _, choice, _ in chosen],
        integrality=np.ones(len(columns), dtype=np.int64),
        bounds=Bounds(0, np.array([kind.count for kind, _, _ in chosen], dtype=float)),
        constraints=(
            LinearConstraint(once, counts, counts),
            LinearConstraint(
                used, -np.inf, [amount for pool in pools for amount in (pool.gpus, pool.cpus, pool.memory)]
            ),
        ),
    )
    if answer.x is None:
        raise PolicyError(f"no allocation gives every job its fair speed: {answer.message}")
    return [round(number) for number in answer.x]
