"""Jobs that are alike, as one.

Where jobs differ in nothing, the mean of an optimum over all ways to exchange them is an optimum too, and gives them
equal shares. So a program over classes has the optimum of that over jobs: 2,048 jobs of 83 kinds make 83 rows, and as
many pairs as these have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmsched.policies.gavel.problem import Floats, Ints, Mask, Problem, Shares

__all__ = ["Classes"]


@dataclass(frozen=True, eq=False, slots=True)
class Classes:
    """`of[j]`: the class of each job; `one[c]`: a job of each class, `count[c]`: how many it has.

    `first` and `second`: classes of one width, whose jobs may share GPUs, the lower first; a class with itself where it
    has two jobs.
    """

    of: Ints
    one: Ints
    count: Floats
    first: Ints
    second: Ints

    @classmethod
    def alike(cls, problem: Problem, worth: Floats) -> Classes:
        """`worth[j]`: what a step of each job counts in the objective."""
        told = [worth, problem.widths, *problem.rates.T]
        if problem.packed:
            told.append(problem.kinds.astype(np.float64))
        _, one, of, count = np.unique(
            np.column_stack(told), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        first, second = np.triu_indices(len(one) if problem.packed else 0)
        widths = problem.widths[one]
        fit = (widths[first] == widths[second]) & ((first != second) | (count[first] > 1))
        return cls(of.reshape(-1), one, count.astype(np.float64), first[fit], second[fit])

    @property
    def pairs(self) -> Floats:
        """How many pairs of jobs each pair of classes has."""
        first, second = self.count[self.first], self.count[self.second]
        found: Floats = first * np.where(self.first == self.second, (first - 1) / 2, second)
        return found

    def spread(self, level: float, single: Floats, pair: Floats) -> Shares:
        """The shares of jobs and of pairs of jobs, equal in each class, from those of whole classes."""
        alone = (single / self.count[:, None])[self.of]
        if not len(self.first):
            return Shares.unshared(level, alone)
        each = np.zeros((len(self.one), len(self.one), pair.shape[1]))
        each[self.first, self.second] = each[self.second, self.first] = pair / self.pairs[:, None]
        first, second = np.triu_indices(len(self.of), k=1)
        some: Mask = np.asarray(each.any(axis=2))[self.of[first], self.of[second]]
        first, second = first[some], second[some]
        return Shares(level, alone, first, second, each[self.of[first], self.of[second]])
