"""Synergy-Opt (Mohan et al., OSDI 2022, section 4.1 and appendix A).

- The ideal allocation (section 4.1.1, equations 1 to 5; appendix A.1.2) is an integer program over the sensitivity
  matrices, with the CPUs and memory of all servers in one pool. It counts the jobs of a class at each point of the
  matrix instead of choosing for each job, so that its size does not grow with the cluster.
- The placement on servers (section 4.1.2; appendix A.1.3, equations 15 to 19) is a linear program whose vertices split
  at most three jobs for each server (theorem A.2).
- With several GPU types (appendix A.2, equations 22 to 26) a job gets one type, and a point of its matrix there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_matrix, csr_matrix

from slurmsched.arrays import Floats
from slurmsched.policies.errors import PolicyError

_MAX_ANSWERS: Final = 4096
"""Solutions to cache, since the classes that run change little from round to round."""

_GAP: Final = 1e-9


@dataclass(frozen=True, slots=True)
class JobClass:
    """`count` jobs of one model and number of GPUs. `cpus`, `memory` and `speed` are those of a whole job at each point
    of the matrix; `fair` is its least speed (equation 5)."""

    count: int
    cpus: tuple[float, ...]
    memory: tuple[float, ...]
    speed: tuple[float, ...]
    fair: float


def maximise_throughput(kinds: Sequence[JobClass], cpus: float, memory: float) -> tuple[tuple[int, ...], ...]:
    """Returns by class how many jobs get each point, so that the sum of speeds is largest; rows sum to `count`.

    `cpus` and `memory` are the totals of all servers. Raises PolicyError if the fair speeds are infeasible.
    """
    useful = [_undominated_points(kind) for kind in kinds]
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
    point_counts = [[0] * len(kind.speed) for kind in kinds]
    for (row, point), number in zip(columns, answer.x, strict=True):
        point_counts[row][point] = round(number)
    return tuple(tuple(row) for row in point_counts)


def _undominated_points(kind: JobClass) -> list[int]:
    """Returns the points with at least the fair speed that no other point dominates."""
    fast = [point for point, speed in enumerate(kind.speed) if speed >= kind.fair]
    # In descending order of speed, then ascending of resources, so that only an earlier point can dominate.
    fast.sort(key=lambda point: (-kind.speed[point], kind.cpus[point], kind.memory[point]))
    kept: list[int] = []
    for point in fast:
        if not any(kind.cpus[other] <= kind.cpus[point] and kind.memory[other] <= kind.memory[point] for other in kept):
            kept.append(point)
    return kept


@dataclass(slots=True)
class PooledOpt:
    """`maximise_throughput` for fixed totals of CPUs and memory, with a cache of the latest solutions."""

    cpus: float
    memory: float
    _answers: OrderedDict[tuple[JobClass, ...], tuple[tuple[int, ...], ...]] = field(default_factory=OrderedDict)

    def maximise_throughput(self, kinds: Sequence[JobClass]) -> tuple[tuple[int, ...], ...]:
        """Returns the counts of `maximise_throughput`. Raises PolicyError."""
        question = tuple(kinds)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = maximise_throughput(question, self.cpus, self.memory)
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(question)
        return answer


_WHOLE = 1e-7


@dataclass(frozen=True, slots=True)
class ResourceAmount:
    """GPUs, CPUs and memory of a job's demand or of a server."""

    gpus: float
    cpus: float
    memory: float


def spread_jobs(demands: Sequence[ResourceAmount], servers: Sequence[ResourceAmount]) -> Floats:
    """Returns the part of each job (columns) on each server (rows); columns sum to 1.

    The simplex method ends in a vertex, which bounds the number of split jobs. A job may get parts of a GPU, so the
    result is no placement for a real cluster (section 4.1.3). Raises PolicyError if the demands do not fit.
    """
    jobs, count = len(demands), len(servers)
    if not jobs:
        return np.zeros((count, 0))
    wanted = np.array([(d.gpus, d.cpus, d.memory) for d in demands], dtype=float)
    have = np.array([(s.gpus, s.cpus, s.memory) for s in servers], dtype=float)
    # Variable i * jobs + j is the part of job j on server i; row 3 * i + r is resource r there.
    server, job, resource = np.meshgrid(np.arange(count), np.arange(jobs), np.arange(3), indexing="ij")
    at_most = coo_matrix(
        (wanted[job, resource].ravel(), ((3 * server + resource).ravel(), (server * jobs + job).ravel())),
        shape=(3 * count, count * jobs),
    )
    whole = coo_matrix(
        (np.ones(count * jobs), (np.tile(np.arange(jobs), count), np.arange(count * jobs))), shape=(jobs, count * jobs)
    )
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices, linprog does
        np.zeros(count * jobs), A_ub=at_most, b_ub=have.ravel(), A_eq=whole, b_eq=np.ones(jobs), method="highs-ds"
    )
    if answer.x is None:
        raise PolicyError(f"the jobs do not fit on the servers, whole or split: {answer.message}")
    return np.asarray(answer.x.reshape(count, jobs), dtype=np.float64)


def count_split_jobs(parts: Floats) -> int:
    """Returns the number of jobs on more than one server."""
    return int(((parts > _WHOLE).sum(axis=0) > 1).sum())


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """A point of a job's matrix on the GPU type with index `pool`: CPUs and memory of the whole job, and its speed."""

    pool: int
    cpus: float
    memory: float
    speed: float


@dataclass(frozen=True, slots=True)
class MixedJobClass:
    """`count` equal jobs with their GPUs, possible choices, and speed under a fair allocation."""

    count: int
    gpus: int
    choices: tuple[TypeChoice, ...]
    fair: float


def maximise_mixed_throughput(
    kinds: Sequence[MixedJobClass], pools: Sequence[ResourceAmount]
) -> tuple[tuple[int, ...], ...]:
    """Returns by class how many jobs get each choice, so that the sum of speeds is largest.

    `pools` are the totals of the servers of each GPU type. Raises PolicyError if the fair speeds are infeasible.
    """
    columns = [
        (row, index)
        for row, kind in enumerate(kinds)
        for index, choice in enumerate(kind.choices)
        if choice.speed >= kind.fair
    ]
    choice_counts = [[0] * len(kind.choices) for kind in kinds]
    if any(not any(row == other for other, _ in columns) for row in range(len(kinds))):
        raise PolicyError("no allocation gives every job its fair speed: a job has no choice that is fast enough")
    if columns:
        for (row, index), number in zip(columns, _solve(kinds, pools, columns), strict=True):
            choice_counts[row][index] = number
    return tuple(tuple(row) for row in choice_counts)


def maximise_mixed_in_turn(
    queue: Sequence[MixedJobClass], pools: Sequence[ResourceAmount]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Solves for each class of the queue in turn with what earlier ones have left ("improving utilization").

    Returns a solution for each class, all zeros if it no longer fits.
    """
    left, answers = list(pools), []
    for kind in queue:
        answer: tuple[tuple[int, ...], ...] = (tuple(0 for _ in kind.choices),)
        for count in range(kind.count, 0, -1):
            try:
                answer = maximise_mixed_throughput([replace(kind, count=count)], left)
            except PolicyError:
                continue
            break
        for number, choice in zip(answer[0], kind.choices, strict=True):
            pool = left[choice.pool]
            left[choice.pool] = ResourceAmount(
                pool.gpus - number * kind.gpus, pool.cpus - number * choice.cpus, pool.memory - number * choice.memory
            )
        answers.append(answer)
    return tuple(answers)


def _solve(
    kinds: Sequence[MixedJobClass], pools: Sequence[ResourceAmount], columns: Sequence[tuple[int, int]]
) -> list[int]:
    chosen = [(kinds[row], kinds[row].choices[index], row) for row, index in columns]
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
