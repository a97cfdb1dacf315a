"""Which of many optima: the middle one.

A program such as max-min has many optima, and rounds go another way with each: a corner gives most jobs a single GPU
type and leaves idle what the least job does not need. Gavel's interior-point solvers end in the analytic centre of the
optima, where the product of all distances to the bounds is largest; what is alike is treated alike there. Measured: its
shares of unpacked jobs and these differ by 0.0004 at most; mean JCTs from corners are up to 15 % off.

Jobs that are alike, as one.

Where jobs differ in nothing, the mean of an optimum over all ways to exchange them is an optimum too, and gives them
equal shares. So a program over classes has the optimum of that over jobs: 2,048 jobs of 83 kinds make 83 rows, and as
many pairs as these have.

The linear program that all of Gavel's policies come down to, solved with HiGHS (sections 3.1 and 4).

Shares are not negative; a job's shares, alone and in pairs, sum to at most all of its time; on each GPU type they take
no more GPUs than there are. As in Gavel, they may also lie where a rate is 0, and rounds let nobody run there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, diags, hstack, vstack
from scipy.sparse.linalg import splu

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.problem import Floats, GavelProblem, Ints, Mask, TimeFractions, equal_time_fractions

_MAX_STEPS: Final = 200
_CENTRE_TOLERANCE: Final = 1e-4
"""How far off the centre a point may be, relative, by any of the conditions."""
_STEP_FRACTION: Final = 0.9
"""Of the way to the nearest bound that a step may go."""
_MIN_SLACK: Final = 1e-3
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class Polytope:
    """{x > 0: rows @ x < limits}. `times` and `row_times` say how often the distance to each bound, of a variable and
    of a row, counts in the product."""

    rows: csr_matrix
    limits: Floats
    weights: Floats
    row_weights: Floats


def analytic_centre(polytope: Polytope, start: Floats) -> Floats | None:
    """The analytic centre by the primal-dual Newton method, or None where none is found: the polytope has no inside.

    At the centre the product of each distance and its multiplier is its number of times, and the multipliers cancel
    out. `start` is above 0, but need not lie inside.
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
        pipeline = rows @ diags(weight) @ across + diags(row_weight)
        known = unbalanced + short
        try:
            d_row_dual = splu(pipeline.tocsc()).solve(rows @ (weight * known) - missing + row_weight * row_short)
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
    """`of[j]`: the class of each job; `one[c]`: a job of each class, `count[c]`: how many it has.

    `first` and `second`: classes of one width, whose jobs may share GPUs, the lower first; a class with itself where it
    has two jobs.
    """

    class_of: Ints
    representatives: Ints
    counts: Floats
    first: Ints
    second: Ints

    @classmethod
    def from_problem(cls, problem: GavelProblem, step_values: Floats) -> JobClasses:
        """`worth[j]`: what a step of each job counts in the objective."""
        told = [step_values, problem.widths, *problem.rates.T]
        if problem.packed:
            told.append(problem.job_types.astype(np.float64))
        _, representatives, of, count = np.unique(
            np.column_stack(told), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        first, second = np.triu_indices(len(representatives) if problem.packed else 0)
        widths = problem.widths[representatives]
        fit = (widths[first] == widths[second]) & ((first != second) | (count[first] > 1))
        return cls(of.reshape(-1), representatives, count.astype(np.float64), first[fit], second[fit])

    @property
    def pair_counts(self) -> Floats:
        """How many pairs of jobs each pair of classes has."""
        first, second = self.counts[self.first], self.counts[self.second]
        found: Floats = first * np.where(self.first == self.second, (first - 1) / 2, second)
        return found

    def to_jobs(self, level: float, single: Floats, pair: Floats) -> TimeFractions:
        """The shares of jobs and of pairs of jobs, equal in each class, from those of whole classes."""
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
"""The part of the best level that is given up, so that the optima have an inside."""
_TOLERANCE: Final = 1e-9


def require_runnable(problem: GavelProblem) -> GavelProblem:
    """The problem, if every job can run somewhere. Raises PolicyError."""
    if not (problem.rates > 0).any(axis=1).all():
        raise PolicyError("a job has no GPU type that it can run on: leave it out")
    return problem


def max_min(problem: GavelProblem, step_values: Floats, *, central: bool = True) -> TimeFractions:
    """The shares whose least job's `worth[j]` times its steps per second is the largest; `level` is that.

    The middle ones of all such shares (`centre`); with `middle` unset whichever is found first, which is sooner. Every
    job can run somewhere, and its worth is above 0.
    """
    floor = float(np.min(step_values * equal_time_fractions(problem).effective_rates(problem)))
    program = _Program.of(problem, step_values / floor)
    count = program.classes.counts
    least = np.concatenate([count, np.zeros(len(program.limits))])
    rows = hstack([vstack([-program.gain, program.rows]), csr_matrix(least[:, None])]).tocsr()
    cost = np.zeros(program.gain.shape[1] + 1)
    cost[-1] = -1.0
    found = _solve(cost, rows, np.concatenate([np.zeros(len(count)), program.limits]))
    level, shares = float(found[-1]), found[:-1]
    if central:
        shares = program.central_optimum(shares, program.gain, count * level, count)
    return program.to_time_fractions(level * floor, shares)


def max_sum(problem: GavelProblem, step_values: Floats) -> TimeFractions:
    """The shares with the largest sum over all jobs of `worth[j]` times steps per second, and of all such the middle
    ones; `level` is that sum."""
    program = _Program.of(problem, step_values)
    gain: Floats = np.asarray(program.gain.sum(axis=0), dtype=np.float64).reshape(-1)
    found = _solve(-gain, program.rows, program.limits)
    level = float(gain @ found)
    shares = program.central_optimum(found, csr_matrix(gain / level), np.ones(1), np.ones(1)) if level > 0 else found
    return program.to_time_fractions(level, shares)


@dataclass(frozen=True, eq=False, slots=True)
class _Program:
    """Variables are the seconds per second of each class on each type, then of each pair of classes on each.

    `gain`: by class and variable, what a unit of it is worth. `rows @ x <= limits`: each class' time, then the GPUs.
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
        room = csr_matrix((widths, (np.arange(shape[1]) % types, np.arange(shape[1]))), shape=(types, shape[1]))
        time = csr_matrix((np.ones(len(row)), (row, variable)), shape=shape)
        return cls(
            classes,
            csr_matrix((np.concatenate(gain).reshape(-1), (row, variable)), shape=shape),
            vstack([time, room]).tocsr(),
            np.concatenate([classes.counts, problem.gpus]),
        )

    def central_optimum(self, optimum: Floats, gain: csr_matrix, level: Floats, row_weights: Floats) -> Floats:
        """The middle of all x with `gain @ x >= level`, each row counting as `times` says; the optimum that is known
        where there is none. A class counts as often as it has jobs: then it is the middle for single jobs too."""
        count, types = self.classes.counts, len(self.limits) - len(self.classes.counts)
        polytope = Polytope(
            vstack([-gain, self.rows]).tocsr(),
            np.concatenate([(_LEVEL_SLACK - 1) * level, self.limits]),
            np.repeat(np.concatenate([count, self.classes.pair_counts]), types),
            np.concatenate([row_weights, count, np.ones(types)]),
        )
        found = analytic_centre(polytope, self._interior_start())
        return optimum if found is None else found

    def _interior_start(self) -> Floats:
        """Half of what every variable may have if all those of a row have as much."""
        entries = self.rows.tocoo()
        each = self.limits / np.maximum(np.asarray(self.rows.sum(axis=1)).reshape(-1), 1.0)
        most = np.full(self.rows.shape[1], np.inf)
        np.minimum.at(most, entries.col, each[entries.row])
        return most / 2

    def to_time_fractions(self, level: float, found: Floats) -> TimeFractions:
        """By job and pair of jobs."""
        by_row = found.reshape(-1, len(self.limits) - len(self.classes.representatives))
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
        raise PolicyError(f"no shares of time were found: {answer.message}")
    found: Floats = np.maximum(answer.x, 0.0)
    return found
