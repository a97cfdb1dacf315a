"""The linear program that all of Gavel's policies come down to, solved with HiGHS (sections 3.1 and 4).

Shares are not negative; a job's shares, alone and in pairs, sum to at most all of its time; on each GPU type they take
no more GPUs than there are. As in Gavel, they may also lie where a rate is 0, and rounds let nobody run there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.centre import Polytope, centre
from slurmsched.policies.gavel.classes import Classes
from slurmsched.policies.gavel.equal import equal_shares
from slurmsched.policies.gavel.problem import Floats, Problem, Shares

__all__ = ["able", "max_min", "max_sum"]

_EASE: Final = 1e-6
"""The part of the best level that is given up, so that the optima have an inside."""
_TOLERANCE: Final = 1e-9


def able(problem: Problem) -> Problem:
    """The problem, if every job can run somewhere. Raises PolicyError."""
    if not (problem.rates > 0).any(axis=1).all():
        raise PolicyError("a job has no GPU type that it can run on: leave it out")
    return problem


def max_min(problem: Problem, worth: Floats, *, middle: bool = True) -> Shares:
    """The shares whose least job's `worth[j]` times its steps per second is the largest; `level` is that.

    The middle ones of all such shares (`centre`); with `middle` unset whichever is found first, which is sooner. Every
    job can run somewhere, and its worth is above 0.
    """
    floor = float(np.min(worth * equal_shares(problem).rates(problem)))
    program = _Program.of(problem, worth / floor)
    count = program.classes.count
    least = np.concatenate([count, np.zeros(len(program.limits))])
    rows = hstack([vstack([-program.gain, program.rows]), csr_matrix(least[:, None])]).tocsr()
    cost = np.zeros(program.gain.shape[1] + 1)
    cost[-1] = -1.0
    found = _optimum(cost, rows, np.concatenate([np.zeros(len(count)), program.limits]))
    level, shares = float(found[-1]), found[:-1]
    if middle:
        shares = program.middle(shares, program.gain, count * level, count)
    return program.shares(level * floor, shares)


def max_sum(problem: Problem, worth: Floats) -> Shares:
    """The shares with the largest sum over all jobs of `worth[j]` times steps per second, and of all such the middle
    ones; `level` is that sum."""
    program = _Program.of(problem, worth)
    gain: Floats = np.asarray(program.gain.sum(axis=0), dtype=np.float64).reshape(-1)
    found = _optimum(-gain, program.rows, program.limits)
    level = float(gain @ found)
    shares = program.middle(found, csr_matrix(gain / level), np.ones(1), np.ones(1)) if level > 0 else found
    return program.shares(level, shares)


@dataclass(frozen=True, eq=False, slots=True)
class _Program:
    """Variables are the seconds per second of each class on each type, then of each pair of classes on each.

    `gain`: by class and variable, what a unit of it is worth. `rows @ x <= limits`: each class' time, then the GPUs.
    """

    classes: Classes
    gain: csr_matrix
    rows: csr_matrix
    limits: Floats

    @classmethod
    def of(cls, problem: Problem, worth: Floats) -> _Program:
        classes, types = Classes.alike(problem, worth), len(problem.gpus)
        one, a, b = classes.one, classes.first, classes.second
        kinds, value = problem.kinds[one], worth[one][:, None]
        gain = [problem.rates[one] * value]
        if len(a):
            gain += [problem.beside[kinds[a], kinds[b]] * value[a], problem.beside[kinds[b], kinds[a]] * value[b]]
        own, shared = len(one) * types, len(a) * types
        variable = np.concatenate([np.arange(own + shared), np.arange(own, own + shared)])
        row = np.repeat(np.concatenate([np.arange(len(one)), a, b]), types)
        shape = (len(one), own + shared)
        widths = np.repeat(problem.widths[one][np.concatenate([np.arange(len(one)), a])], types)
        room = csr_matrix((widths, (np.arange(shape[1]) % types, np.arange(shape[1]))), shape=(types, shape[1]))
        time = csr_matrix((np.ones(len(row)), (row, variable)), shape=shape)
        return cls(
            classes,
            csr_matrix((np.concatenate(gain).reshape(-1), (row, variable)), shape=shape),
            vstack([time, room]).tocsr(),
            np.concatenate([classes.count, problem.gpus]),
        )

    def middle(self, optimum: Floats, gain: csr_matrix, level: Floats, times: Floats) -> Floats:
        """The middle of all x with `gain @ x >= level`, each row counting as `times` says; the optimum that is known
        where there is none. A class counts as often as it has jobs: then it is the middle for single jobs too."""
        count, types = self.classes.count, len(self.limits) - len(self.classes.count)
        polytope = Polytope(
            vstack([-gain, self.rows]).tocsr(),
            np.concatenate([(_EASE - 1) * level, self.limits]),
            np.repeat(np.concatenate([count, self.classes.pairs]), types),
            np.concatenate([times, count, np.ones(types)]),
        )
        found = centre(polytope, self._inside())
        return optimum if found is None else found

    def _inside(self) -> Floats:
        """Half of what every variable may have if all those of a row have as much."""
        entries = self.rows.tocoo()
        each = self.limits / np.maximum(np.asarray(self.rows.sum(axis=1)).reshape(-1), 1.0)
        most = np.full(self.rows.shape[1], np.inf)
        np.minimum.at(most, entries.col, each[entries.row])
        return most / 2

    def shares(self, level: float, found: Floats) -> Shares:
        """By job and pair of jobs."""
        by_row = found.reshape(-1, len(self.limits) - len(self.classes.one))
        return self.classes.spread(level, by_row[: len(self.classes.one)], by_row[len(self.classes.one) :])


def _optimum(cost: Floats, rows: csr_matrix, limits: Floats) -> Floats:
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
