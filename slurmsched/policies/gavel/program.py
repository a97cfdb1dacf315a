"""The linear program behind all of Gavel's objectives, solved with HiGHS (Narayanan et al., OSDI 2020, sections 3.1
and 4).

Time fractions are not negative; those of a job, alone and in pairs, sum to at most 1; on each GPU type they use no more
GPUs than there are. As in Gavel, they may be positive where a rate is 0; rounds run no job there.

Identical jobs form a class. The mean of an optimum over all permutations of identical jobs is an optimum too, so the
program over classes has the same optimum as that over jobs: 2,048 jobs of 83 classes need 83 rows and their pairs.

A max-min program has many optima, and rounds differ with the optimum chosen: a corner gives most jobs a single GPU type
and leaves idle what the worst-off job does not need. Gavel's interior-point solvers end in the analytic centre of the
optima, where the product of all distances to the bounds is largest, so we compute that. Measured: time fractions of
unpacked jobs differ from Gavel's by at most 0.0004; mean JCTs from corners are up to 15 % off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, diags, hstack, vstack
from scipy.sparse.linalg import splu

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.problem import GavelProblem, TimeFractions, equal_time_fractions

_MAX_STEPS: Final = 200
_CENTRE_TOLERANCE: Final = 1e-4
"""Largest relative violation of any optimality condition that counts as the centre."""
_STEP_FRACTION: Final = 0.9
"""Fraction of the way to the nearest bound that a step may go."""
_MIN_SLACK: Final = 1e-3
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class Polytope:
    """The set {x > 0: rows @ x < limits}. `weights` and `row_weights` are the exponents of the distances to the bounds
    of variables and of rows in the product that the analytic centre maximises."""

    rows: csr_matrix
    limits: Floats
    weights: Floats
    row_weights: Floats


def analytic_centre(polytope: Polytope, start: Floats) -> Floats | None:
    """Returns the analytic centre by the primal-dual Newton method, or None for a polytope without an interior.

    At the centre the product of each distance and its multiplier equals its weight, and the multipliers cancel out.
    `start` is above 0, but need not be inside.
    """
    rows, across = polytope.rows, csr_matrix(polytope.rows.T)
    x, slack = start, np.maximum(polytope.limits - rows @ start, _MIN_SLACK)
    dual, row_dual = polytope.weights / x, polytope.row_weights / slack
    rounding = _ROUNDING * (1 + np.abs(polytope.limits))
    for _ in range(_MAX_STEPS):
        missing, unbalanced = polytope.limits - rows @ x - slack, dual - across @ row_dual
        short, row_short = polytope.weights / x - dual, polytope.row_weights / slack - row_dual
        off = (short / dual, row_short / row_dual, missing / (slack + rounding), unbalanced / dual)
        if max(float(np.abs(part).max()) for part in off) < _CENTRE_TOLERANCE:
            return x
        weight, row_weight = x / dual, slack / row_dual
        normal_matrix = rows @ diags(weight) @ across + diags(row_weight)
        known = unbalanced + short
        try:
            d_row_dual = splu(normal_matrix.tocsc()).solve(rows @ (weight * known) - missing + row_weight * row_short)
        except RuntimeError:
            return None
        d_x = weight * (known - across @ d_row_dual)
        d_slack = row_weight * (row_short - d_row_dual)
        d_dual = short - d_x / weight
        moved = ((x, d_x), (slack, d_slack), (dual, d_dual), (row_dual, d_row_dual))
        nearest = max(float((-step / value).max()) for value, step in moved)
        size = min(1.0, _STEP_FRACTION / nearest) if nearest > 0 else 1.0
        x, slack, dual, row_dual = (value + size * step for value, step in moved)
    return None


@dataclass(frozen=True, eq=False, slots=True)
class JobClasses:
    """Classes of identical jobs: `class_of[j]` is the class of job j, `representatives[c]` a job of class c, and
    `counts[c]` its number of jobs.

    `first` and `second` are the pairs of classes of equal width whose jobs may share GPUs, the lower first; a class is
    paired with itself if it has two jobs.
    """

    class_of: Ints
    representatives: Ints
    counts: Floats
    first: Ints
    second: Ints

    @classmethod
    def from_problem(cls, problem: GavelProblem, step_values: Floats) -> JobClasses:
        """`step_values[j]` is the value of a step of job j in the objective."""
        columns = [step_values, problem.widths, *problem.rates.T]
        if problem.packed:
            columns.append(problem.job_types.astype(np.float64))
        _, representatives, class_of, count = np.unique(
            np.column_stack(columns), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        first, second = np.triu_indices(len(representatives) if problem.packed else 0)
        widths = problem.widths[representatives]
        fit = (widths[first] == widths[second]) & ((first != second) | (count[first] > 1))
        return cls(class_of.reshape(-1), representatives, count.astype(np.float64), first[fit], second[fit])

    @property
    def pair_counts(self) -> Floats:
        """The number of pairs of jobs of each pair of classes."""
        first, second = self.counts[self.first], self.counts[self.second]
        pairs: Floats = first * np.where(self.first == self.second, (first - 1) / 2, second)
        return pairs

    def to_jobs(self, level: float, single: Floats, pair: Floats) -> TimeFractions:
        """Returns the time fractions of jobs and of pairs, equal within a class, from those of whole classes."""
        alone = (single / self.counts[:, None])[self.class_of]
        if not len(self.first):
            return TimeFractions.without_pairs(level, alone)
        each = np.zeros((len(self.representatives), len(self.representatives), pair.shape[1]))
        each[self.first, self.second] = each[self.second, self.first] = pair / self.pair_counts[:, None]
        first, second = np.triu_indices(len(self.class_of), k=1)
        some: Mask = np.asarray(each.any(axis=2))[self.class_of[first], self.class_of[second]]
        first, second = first[some], second[some]
        return TimeFractions(level, alone, first, second, each[self.class_of[first], self.class_of[second]])


_LEVEL_SLACK: Final = 1e-6
"""Fraction of the optimal value that is given up, so that the set of optima has an interior."""
_TOLERANCE: Final = 1e-9


def require_runnable(problem: GavelProblem) -> GavelProblem:
    """Returns the problem if every job can run on some type; else raises PolicyError."""
    if not (problem.rates > 0).any(axis=1).all():
        raise PolicyError("a job can run on no GPU type: remove it from the problem")
    return problem


def max_min(problem: GavelProblem, step_values: Floats, *, central: bool = True) -> TimeFractions:
    """Maximises the smallest `step_values[j]` times job j's steps per second, which is the objective value.

    Returns the analytic centre of the optima, or with `central` unset whichever optimum is found first, which is
    faster. Every job can run on some type, and its step value is above 0. Raises PolicyError.
    """
    lower_bound = float(np.min(step_values * equal_time_fractions(problem).effective_rates(problem)))
    program = _Program.of(problem, step_values / lower_bound)
    count = program.classes.counts
    least = np.concatenate([count, np.zeros(len(program.limits))])
    rows = hstack([vstack([-program.gain, program.rows]), csr_matrix(least[:, None])]).tocsr()
    cost = np.zeros(program.gain.shape[1] + 1)
    cost[-1] = -1.0
    solution = _solve(cost, rows, np.concatenate([np.zeros(len(count)), program.limits]))
    level, shares = float(solution[-1]), solution[:-1]
    if central:
        shares = program.central_optimum(shares, program.gain, count * level, count)
    return program.to_time_fractions(level * lower_bound, shares)


def max_sum(problem: GavelProblem, step_values: Floats) -> TimeFractions:
    """Maximises the sum over jobs of `step_values[j]` times job j's steps per second, which is the objective value.

    Returns the analytic centre of the optima. Raises PolicyError.
    """
    program = _Program.of(problem, step_values)
    gain: Floats = np.asarray(program.gain.sum(axis=0), dtype=np.float64).reshape(-1)
    solution = _solve(-gain, program.rows, program.limits)
    level = float(gain @ solution)
    if level > 0:
        solution = program.central_optimum(solution, csr_matrix(gain / level), np.ones(1), np.ones(1))
    return program.to_time_fractions(level, solution)


@dataclass(frozen=True, eq=False, slots=True)
class _Program:
    """The program over classes. Variables are the time fractions of each class on each type, then of each pair of
    classes on each type.

    `gain` is by class and variable the value of one unit of it. `rows @ x <= limits` bounds the time of each class,
    then the GPUs of each type.
    """

    classes: JobClasses
    gain: csr_matrix
    rows: csr_matrix
    limits: Floats

    @classmethod
    def of(cls, problem: GavelProblem, step_values: Floats) -> _Program:
        classes, types = JobClasses.from_problem(problem, step_values), len(problem.gpus)
        representatives, a, b = classes.representatives, classes.first, classes.second
        types_of_jobs, value = problem.job_types[representatives], step_values[representatives][:, None]
        gain = [problem.rates[representatives] * value]
        if len(a):
            gain += [
                problem.colocated_rates[types_of_jobs[a], types_of_jobs[b]] * value[a],
                problem.colocated_rates[types_of_jobs[b], types_of_jobs[a]] * value[b],
            ]
        alone_variables, shared = len(representatives) * types, len(a) * types
        variable = np.concatenate(
            [np.arange(alone_variables + shared), np.arange(alone_variables, alone_variables + shared)]
        )
        row = np.repeat(np.concatenate([np.arange(len(representatives)), a, b]), types)
        shape = (len(representatives), alone_variables + shared)
        widths = np.repeat(problem.widths[representatives][np.concatenate([np.arange(len(representatives)), a])], types)
        gpu_rows = csr_matrix((widths, (np.arange(shape[1]) % types, np.arange(shape[1]))), shape=(types, shape[1]))
        time_rows = csr_matrix((np.ones(len(row)), (row, variable)), shape=shape)
        return cls(
            classes,
            csr_matrix((np.concatenate(gain).reshape(-1), (row, variable)), shape=shape),
            vstack([time_rows, gpu_rows]).tocsr(),
            np.concatenate([classes.counts, problem.gpus]),
        )

    def central_optimum(self, optimum: Floats, gain: csr_matrix, level: Floats, row_weights: Floats) -> Floats:
        """Returns the analytic centre of all x with `gain @ x >= level`, or `optimum` where there is none.

        Rows of `gain` have `row_weights`. A class has the weight of its number of jobs, so the result is the centre
        over single jobs too.
        """
        count, types = self.classes.counts, len(self.limits) - len(self.classes.counts)
        polytope = Polytope(
            vstack([-gain, self.rows]).tocsr(),
            np.concatenate([(_LEVEL_SLACK - 1) * level, self.limits]),
            np.repeat(np.concatenate([count, self.classes.pair_counts]), types),
            np.concatenate([row_weights, count, np.ones(types)]),
        )
        centre = analytic_centre(polytope, self._interior_start())
        return optimum if centre is None else centre

    def _interior_start(self) -> Floats:
        """Returns for each variable half of its bound if all variables of a row were equal."""
        entries = self.rows.tocoo()
        each = self.limits / np.maximum(np.asarray(self.rows.sum(axis=1)).reshape(-1), 1.0)
        most = np.full(self.rows.shape[1], np.inf)
        np.minimum.at(most, entries.col, each[entries.row])
        return most / 2

    def to_time_fractions(self, level: float, solution: Floats) -> TimeFractions:
        """Returns the solution by job and by pair of jobs."""
        by_row = solution.reshape(-1, len(self.limits) - len(self.classes.representatives))
        return self.classes.to_jobs(
            level, by_row[: len(self.classes.representatives)], by_row[len(self.classes.representatives) :]
        )


def _solve(cost: Floats, rows: csr_matrix, limits: Floats) -> Floats:
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices, linprog does
        cost,
        A_ub=rows,
        b_ub=limits,
        method="highs-ipm",
        options={"primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE},
    )
    if answer.x is None:
        raise PolicyError(f"the linear program has no solution: {answer.message}")
    solution: Floats = np.maximum(answer.x, 0.0)
    return solution
