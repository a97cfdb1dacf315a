"""The linear program behind all of Gavel's objectives (Narayanan et al., OSDI 2020, sections 3.1 and 4).

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
from scipy.sparse import csr_matrix, hstack, vstack

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.interior_point import (
    BorderedEquations,
    ClassEquations,
    NormalEquations,
    PairEquations,
    Point,
    Polytope,
    analytic_centre,
    maximum,
)
from slurmsched.policies.gavel.problem import GavelProblem, TimeFractions, equal_time_fractions


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
_START_EXCESS: Final = 2.0
"""How far above their lowest feasible value multipliers begin."""


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
    level, shares, start = program.highest_level()
    if central:
        shares = program.central_optimum(shares, level, start)
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
        solution = program.central_optimum_of_sum(solution, gain / level)
    return program.to_time_fractions(level, solution)


@dataclass(frozen=True, eq=False, slots=True)
class _Program:
    """The program over classes. Variables are the time fractions of each class on each type, then of each pair of
    classes on each type.

    `gain` is by class and variable the value of one unit of it. `rows @ x <= limits` bounds the time of each class,
    then the GPUs of each type. `single_gain`, `first_gain` and `second_gain` are the gains of classes alone and of the
    two classes of each pair, [types, classes] and [types, pairs].
    """

    classes: JobClasses
    gain: csr_matrix
    rows: csr_matrix
    limits: Floats
    widths: Floats
    single_gain: Floats
    first_gain: Floats
    second_gain: Floats

    @classmethod
    def of(cls, problem: GavelProblem, step_values: Floats) -> _Program:
        classes, types = JobClasses.from_problem(problem, step_values), len(problem.gpus)
        representatives, a, b = classes.representatives, classes.first, classes.second
        types_of_jobs, value = problem.job_types[representatives], step_values[representatives][:, None]
        single, first, second = problem.rates[representatives] * value, np.zeros((0, types)), np.zeros((0, types))
        if len(a):
            first = problem.colocated_rates[types_of_jobs[a], types_of_jobs[b]] * value[a]
            second = problem.colocated_rates[types_of_jobs[b], types_of_jobs[a]] * value[b]
        alone_variables, shared = len(representatives) * types, len(a) * types
        variable = np.concatenate(
            [np.arange(alone_variables + shared), np.arange(alone_variables, alone_variables + shared)]
        )
        row = np.repeat(np.concatenate([np.arange(len(representatives)), a, b]), types)
        shape = (len(representatives), alone_variables + shared)
        class_widths = problem.widths[representatives]
        widths = np.repeat(class_widths[np.concatenate([np.arange(len(representatives)), a])], types)
        gpu_rows = csr_matrix((widths, (np.arange(shape[1]) % types, np.arange(shape[1]))), shape=(types, shape[1]))
        time_rows = csr_matrix((np.ones(len(row)), (row, variable)), shape=shape)
        return cls(
            classes,
            csr_matrix((np.concatenate([single, first, second]).reshape(-1), (row, variable)), shape=shape),
            vstack([time_rows, gpu_rows]).tocsr(),
            np.concatenate([classes.counts, problem.gpus]),
            class_widths,
            single.T,
            first.T,
            second.T,
        )

    @property
    def _types(self) -> int:
        return len(self.single_gain)

    def highest_level(self) -> tuple[float, Floats, Point | None]:
        """Returns the largest value that every job can have at once, an optimum, and where to look for the centre.
        Raises PolicyError."""
        counts = self.classes.counts
        column = np.concatenate([counts, np.zeros(len(self.limits))])
        polytope = Polytope(
            hstack([vstack([-self.gain, self.rows]), csr_matrix(column[:, None])]).tocsr(),
            np.concatenate([np.zeros(len(counts)), self.limits]),
            np.append(self._variable_weights(), 1.0),
            self._row_weights(),
            BorderedEquations(self._equations(), column),
        )
        value = np.zeros(polytope.rows.shape[1])
        value[-1] = 1.0
        optimum = maximum(polytope, value, self._level_start(polytope, value), _LEVEL_SLACK)
        if optimum is None:
            solution = _solve(-value, polytope.rows, polytope.limits)
            return float(solution[-1]), solution[:-1], None
        near = optimum.near
        return (
            float(optimum.x[-1]),
            optimum.x[:-1],
            Point(near.x[:-1], near.slack, near.dual[:-1], near.row_dual),
        )

    def _level_start(self, polytope: Polytope, value: Floats) -> Point:
        """Returns a point inside, with multipliers that are inside too."""
        counts, start = self.classes.counts, self._interior_start()
        x = np.append(start, float((self.gain @ start / counts).min()) / 2)
        of_gain = _START_EXCESS / counts.sum()
        dearest = np.zeros(len(counts))
        for gain, classes in (
            (self.single_gain, np.arange(len(counts))),
            (self.first_gain, self.classes.first),
            (self.second_gain, self.classes.second),
        ):
            np.maximum.at(dearest, classes, gain.max(axis=0, initial=0.0))
        of_time = _START_EXCESS * of_gain * dearest
        of_gpus = of_time @ counts / (self.limits[len(counts) :] * self._types)
        row_dual = np.concatenate([np.full(len(counts), of_gain), of_time, of_gpus])
        return Point(x, polytope.limits - polytope.rows @ x, polytope.rows.T @ row_dual - value, row_dual)

    def central_optimum(self, optimum: Floats, level: float, start: Point | None) -> Floats:
        """Returns the analytic centre of all x in which every job has this level, or `optimum` where there is none.

        A class has the weight of its number of jobs, so the result is the centre over single jobs too.
        """
        polytope = Polytope(
            vstack([-self.gain, self.rows]).tocsr(),
            np.concatenate([(_LEVEL_SLACK - 1) * level * self.classes.counts, self.limits]),
            self._variable_weights(),
            self._row_weights(),
            self._equations(),
        )
        centre = analytic_centre(polytope, start) if start is not None else None
        if centre is None:
            centre = analytic_centre(polytope, self._interior_start())
        return optimum if centre is None else centre

    def _row_weights(self) -> Floats:
        return np.concatenate([self.classes.counts, self.classes.counts, np.ones(self._types)])

    def central_optimum_of_sum(self, optimum: Floats, gain: Floats) -> Floats:
        """Returns the same of all x with `gain @ x` of 1."""
        counts = self.classes.counts
        polytope = Polytope(
            vstack([self.rows, csr_matrix(-gain)]).tocsr(),
            np.append(self.limits, _LEVEL_SLACK - 1),
            self._variable_weights(),
            np.concatenate([counts, np.ones(self._types + 1)]),
            self._equations(gain),
        )
        centre = analytic_centre(polytope, self._interior_start())
        return optimum if centre is None else centre

    def _variable_weights(self) -> Floats:
        return np.repeat(np.concatenate([self.classes.counts, self.classes.pair_counts]), self._types)

    def _equations(self, summed: Floats | None = None) -> NormalEquations:
        """Returns the normal equations of the rows of gain (or of the row of `summed` gain, last), time and GPUs."""
        types, classes, pairs = self._types, len(self.widths), len(self.classes.first)
        each, of_pairs = np.eye(types)[:, :, None] * self.widths, np.eye(types)[:, :, None]
        of_pairs = of_pairs * self.widths[self.classes.first]
        time, pair_time = np.ones((1, types, classes)), np.ones((1, types, pairs))
        if summed is None:
            local = np.concatenate([-self.single_gain[None], time])
            first = np.concatenate([-self.first_gain[None], pair_time])
            second = np.concatenate([-self.second_gain[None], pair_time])
        else:
            local, first, second = time, pair_time, pair_time
            by_type = summed.reshape(-1, types).T
            each = np.concatenate([each, -by_type[None, :, :classes]])
            of_pairs = np.concatenate([of_pairs, -by_type[None, :, classes:]])
        alone = ClassEquations(local, each)
        if not pairs:
            return alone
        return PairEquations(alone, self.classes.first, self.classes.second, first, second, of_pairs)

    def _interior_start(self) -> Floats:
        """Returns for each variable half of its bound if all variables of a row were equal."""
        entries = self.rows.tocoo()
        each = self.limits / np.maximum(np.asarray(self.rows.sum(axis=1)).reshape(-1), 1.0)
        most = np.full(self.rows.shape[1], np.inf)
        np.minimum.at(most, entries.col, each[entries.row])
        return most / 2

    def to_time_fractions(self, level: float, solution: Floats) -> TimeFractions:
        """Returns the solution by job and by pair of jobs."""
        by_row = solution.reshape(-1, self._types)
        return self.classes.to_jobs(level, by_row[: len(self.widths)], by_row[len(self.widths) :])


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
