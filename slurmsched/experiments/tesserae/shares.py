"""What part of the time each job and each pair runs: Gavel's least-attained-service program with packing, on GPUs of
one type (Narayanan et al., OSDI 2020, sections 3.1 and 4.1).

Jobs of one model and width are alike, so the program is over these classes. Of all shares that give the least job the
most, those with the most throughput are taken, since Gavel's rounds use up what is left anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_matrix, hstack

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.pools import Ints, Mask
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["Classes", "shares_of_time"]

_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Classes:
    """Jobs of one kind and width: of class c there are `count[c]`. An entry is a class, or two that share GPUs: those
    at `first` and `second`, which is the first again for one alone; `kept` is what part of its rate each then keeps."""

    width: Ints
    count: Ints
    first: Ints
    second: Ints
    kept: tuple[Floats, Floats]
    packed: Mask

    @classmethod
    def of(cls, kind: Ints, width: Ints, count: Ints, kept: Floats) -> Classes:
        """All classes alone, and all pairs of equal width that do more together than one alone does."""
        alone = np.arange(len(kind))
        a, b = np.triu_indices(len(kind))
        own, other = kept[kind[a], kind[b]], kept[kind[b], kind[a]]
        useful = (width[a] == width[b]) & (own > 0) & (other > 0) & (own + other > 1) & ((a != b) | (count[a] > 1))
        a, b, own, other = a[useful], b[useful], own[useful], other[useful]
        ones, packed = np.ones(len(kind)), np.repeat((False, True), (len(kind), len(a)))
        parts = np.concatenate((ones, own)), np.concatenate((0 * ones, other))
        return cls(width, count, np.concatenate((alone, a)), np.concatenate((alone, b)), parts, packed)

    def per_class(self, first: Floats, second: Floats) -> csr_matrix:
        """By class and entry, what a unit of the entry is to its first and to its second class."""
        entries = np.arange(len(self.first))
        rows = np.concatenate((self.first, self.second))
        columns = np.concatenate((entries, entries))
        return csr_matrix((np.concatenate((first, second)), (rows, columns)), shape=(len(self.width), len(entries)))


def shares_of_time(classes: Classes, gpus: int) -> Floats:
    """Of each entry, how many of its jobs or pairs run at a time. Raises PolicyError.

    The least of all jobs, by its width times its speed, gets the most there is; then all together the most.
    """
    speed = classes.per_class(*classes.kept)
    busy = classes.per_class(np.ones(len(classes.first)), classes.packed.astype(np.float64))
    room = csr_matrix(classes.width[classes.first].astype(np.float64))
    least = csr_matrix((classes.count / classes.width)[:, None])
    limits = [
        LinearConstraint(hstack((busy, 0 * least)).tocsr(), -np.inf, classes.count),
        LinearConstraint(hstack((room, csr_matrix((1, 1)))).tocsr(), -np.inf, gpus),
        LinearConstraint(hstack((speed, -least)).tocsr(), 0, np.inf),
    ]
    level = np.zeros(len(classes.first) + 1)
    level[-1] = -1.0
    best = _solved(level, limits)[-1]
    reached = LinearConstraint(csr_matrix(-level), (1 - _ROUNDING) * best, np.inf)
    work = np.append(-np.asarray(speed.T @ classes.width, dtype=np.float64), 0.0)
    return np.clip(_solved(work, [*limits, reached])[:-1], 0.0, None)


def _solved(cost: Floats, limits: list[LinearConstraint]) -> Floats:
    answer = milp(cost, constraints=limits)
    if answer.x is None:
        raise PolicyError(f"no shares of time were found: {answer.message}")
    return np.asarray(answer.x, dtype=np.float64)
