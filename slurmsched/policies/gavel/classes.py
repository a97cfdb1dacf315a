"""Jobs that are alike, as one: a linear program over them has the same optimum as over the jobs.

Where jobs differ in nothing, the mean of an optimum over all ways to exchange them is an optimum too, and gives them
equal shares. So 2,048 jobs of 83 kinds make a program of 83 rows, and as many pairs as these have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmsched.policies.gavel.problem import Floats, Ints, Problem, Shares

__all__ = ["Classes"]


@dataclass(frozen=True, eq=False, slots=True)
class Classes:
    """`of[j]`: the class of each job; `one[c]`: a job of each class, `count[c]`: how many it has.

    `first` and `second`: classes whose jobs may share GPUs, the lower first; a class with itself where it has two jobs.
    `useful[p, w]`: whether sharing type w makes more of it than taking turns does.
    """

    of: Ints
    one: Ints
    count: Floats
    first: Ints
    second: Ints
    useful: np.typing.NDArray[np.bool_]

    @classmethod
    def alike(cls, problem: Problem, worth: Floats) -> Classes:
        """`worth[j]`: what a step of each job counts in the objective."""
        if problem.packed:
            told = np.column_stack([problem.kinds, worth])
        else:
            told = np.column_stack([problem.rates, problem.widths, worth])
        _, one, of, count = np.unique(told, axis=0, return_index=True, return_inverse=True, return_counts=True)
        first, second, useful = _sharing(problem, one, count)
        return cls(of.reshape(-1), one, count.astype(np.float64), first, second, useful)

    def spread(self, level: float, single: Floats, pair: Floats) -> Shares:
        """The shares of jobs and of pairs of jobs, from those of whole classes: equal in each."""
        alone = (single / self.count[:, None])[self.of]
        if not pair.any():
            return Shares.unshared(level, alone)
        whole = np.zeros((len(self.one), len(self.one), pair.shape[1]))
        ways = self.count[self.first] * np.where(
            self.first == self.second, (self.count[self.first] - 1) / 2, self.count[self.second]
        )
        whole[self.first, self.second] = whole[self.second, self.first] = pair / ways[:, None]
        a, b = np.triu_indices(len(self.of), k=1)
        used = whole.any(axis=2)[self.of[a], self.of[b]]
        a, b = a[used], b[used]
        return Shares(level, alone, a, b, whole[self.of[a], self.of[b]])


def _sharing(
    problem: Problem, one: Ints, count: Ints
) -> tuple[Ints, Ints, np.typing.NDArray[np.bool_]]:
    """Pairs of classes and where it pays: the parts of their rates alone that two keep sum to more than 1."""
    types = problem.rates.shape[1]
    if not problem.packed:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros((0, types), dtype=np.bool_)
    a, b = np.triu_indices(len(one))
    kept = (a != b) | (count[a] > 1)
    kept &= problem.widths[one[a]] == problem.widths[one[b]]
    a, b = a[kept], b[kept]
    kinds, alone = problem.kinds[one], problem.rates[one]
    there, back = problem.beside[kinds[a], kinds[b]], problem.beside[kinds[b], kinds[a]]
    with np.errstate(divide="ignore", invalid="ignore"):
        sum_of_parts = there / alone[a] + back / alone[b]
    useful = (there > 0) & (back > 0) & (sum_of_parts > 1)
    some = useful.any(axis=1)
    return a[some], b[some], useful[some]
