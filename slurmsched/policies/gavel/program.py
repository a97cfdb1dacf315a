"""The linear program that all of Gavel's policies come down to, solved with HiGHS (sections 3.1 and 4).

Shares are not negative; a job's shares, alone and in pairs, sum to at most all of its time; on each GPU type they take
no more GPUs than there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_array, coo_array, csr_array

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.classes import Classes
from slurmsched.policies.gavel.equal import equal_shares
from slurmsched.policies.gavel.problem import Floats, Ints, Problem, Shares

__all__ = ["max_min", "max_sum"]


@dataclass(frozen=True, eq=False, slots=True)
class _Program:
    """Variables are seconds per second of a class on a type, then of two classes that share one.

    `at`: class or pair, and type, of each. By class and variable, `gain` is what a unit of it is worth, and `time` how
    much of the class' time it takes; `room` how many GPUs, by type and variable.
    """

    classes: Classes
    gpus: Floats
    alone: tuple[Ints, Ints]
    shared: tuple[Ints, Ints]
    gain: csr_array
    time: csr_array
    room: csr_array

    @classmethod
    def of(cls, problem: Problem, worth: Floats) -> _Program:
        classes = Classes.alike(problem, worth)
        one, (a, b) = classes.one, (classes.first, classes.second)
        rates = problem.rates[one]
        own, types = np.nonzero(rates)
        pairs, shared = np.nonzero(classes.useful)
        kinds, value = problem.kinds[one], worth[one]
        gain = [(rates * value[:, None])[own, types]]
        if len(pairs):
            gain += [
                (problem.beside[kinds[x], kinds[y]] * value[x][:, None])[pairs, shared] for x, y in ((a, b), (b, a))
            ]
        width = problem.widths[one][np.concatenate([own, a[pairs]])]
        row = np.concatenate([own, a[pairs], b[pairs]])
        alone = np.arange(len(own))
        together = np.arange(len(own), len(own) + len(pairs))
        column = np.concatenate([alone, together, together])
        shape = (len(one), len(width))
        return cls(
            classes,
            problem.gpus,
            (own, types),
            (pairs, shared),
            coo_array((np.concatenate(gain), (row, column)), shape=shape).tocsr(),
            coo_array((np.ones(len(row)), (row, column)), shape=shape).tocsr(),
            coo_array((width, (np.concatenate([types, shared]), np.arange(len(width)))), (len(problem.gpus), len(width))).tocsr(),
        )

    def shares(self, level: float, found: Floats) -> Shares:
        single = np.zeros((len(self.classes.one), len(self.gpus)))
        pair = np.zeros((len(self.classes.first), len(self.gpus)))
        single[self.alone] = found[: len(self.alone[0])]
        pair[self.shared] = found[len(self.alone[0]) :]
        return self.classes.spread(level, single, pair)


def max_min(problem: Problem, worth: Floats) -> Shares:
    """The shares whose least job's `worth[j]` times its steps per second is the largest; `level` is that.

    Raises PolicyError for a job that can run nowhere.
    """
    floor = float(np.min(worth * equal_shares(problem).rates(problem), initial=np.inf))
    if not floor > 0:
        raise PolicyError("a job has no GPU type that it can run on: leave it out")
    program = _Program.of(problem, worth / floor)
    count = program.classes.count
    least = csr_array(count[:, None])
    whole = block_array([[-program.gain, least], [program.time, None], [program.room, None]]).tocsr()
    limit = np.concatenate([np.zeros(len(count)), count, program.gpus])
    cost = np.zeros(whole.shape[1])
    cost[-1] = -1.0
    found = _optimum(cost, whole, limit)
    return program.shares(float(found[-1]) * floor, found[:-1])


def max_sum(problem: Problem, worth: Floats) -> Shares:
    """The shares with the largest sum over all jobs of `worth[j]` times steps per second; `level` is that."""
    program = _Program.of(problem, worth)
    cost = -np.asarray(program.gain.sum(axis=0)).reshape(-1)
    whole = block_array([[program.time], [program.room]]).tocsr()
    found = _optimum(cost, whole, np.concatenate([program.classes.count, program.gpus]))
    return program.shares(-float(cost @ found), found)


def _optimum(cost: Floats, whole: csr_array, limit: Floats) -> Floats:
    result = linprog(cost, A_ub=whole, b_ub=limit, method="highs")
    if result.x is None:
        raise PolicyError(f"no shares of time were found: {result.message}")
    found: Floats = np.clip(result.x, 0.0, None)
    return found
