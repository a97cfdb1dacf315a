"""The question to Gavel's policies: rates, widths and what there is; and their answer (section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "Mask", "Problem", "Shares"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def _nothing() -> Floats:
    return np.zeros((0, 0, 0))


@dataclass(frozen=True, eq=False, slots=True)
class Problem:
    """Jobs by place and GPU types by place.

    `rates[j, w]`: steps per second of the whole job on `widths[j]` GPUs of type w, 0 where it cannot run; `gpus[w]`:
    how many there are. `remaining`: steps to go; `elapsed`: seconds since arrival; `alone`: seconds its steps so far
    would have taken on its equal part of the cluster; `weights`: priority weights.

    `beside[k, l, w]`: steps per second of a job of kind k while one of kind l has the same GPUs of type w, 0 where they
    cannot share; `kinds[j]` is each job's. Empty where nobody shares.
    """

    gpus: Floats
    rates: Floats
    widths: Floats
    remaining: Floats
    elapsed: Floats
    alone: Floats
    weights: Floats
    kinds: Ints
    beside: Floats = field(default_factory=_nothing)

    @classmethod
    def of(cls, gpus: Floats, rates: Floats, widths: Floats) -> Problem:
        """Jobs of weight 1 that have just arrived, each of a kind of its own, with one step to go; nobody shares."""
        ones, zeros = np.ones(len(rates)), np.zeros(len(rates))
        return cls(gpus, rates, widths, ones, zeros, zeros, ones, np.arange(len(rates)))

    @property
    def packed(self) -> bool:
        """Whether two jobs may share GPUs."""
        return bool(self.beside.size)

    def unpacked(self) -> Problem:
        """The same where nobody shares."""
        return replace(self, beside=_nothing()) if self.packed else self

    def blind(self, reference: int | None = None) -> Problem:
        """The same to a policy that does not tell GPU types apart: everywhere the rate on the reference type, or the
        best where the job cannot run on that; without a reference 1."""
        rates = np.ones_like(self.rates)
        if reference is not None:
            known = self.rates[:, reference]
            rates *= np.where(known > 0, known, self.rates.max(axis=1))[:, None]
        return replace(self.unpacked(), rates=rates)


@dataclass(frozen=True, eq=False, slots=True)
class Shares:
    """Parts of wall time. `single[j, w]`: of job j alone on type w. `first` and `second`: the jobs of each pair, the
    lower first, and `pair[p, w]` its part. `level`: the objective's value."""

    level: float
    single: Floats
    first: Ints
    second: Ints
    pair: Floats

    @classmethod
    def unshared(cls, level: float, single: Floats) -> Shares:
        nobody: Ints = np.zeros(0, dtype=np.int64)
        return cls(level, single, nobody, nobody, np.zeros((0, single.shape[1])))

    def rates(self, problem: Problem) -> Floats:
        """Steps per second that each job makes of its shares, on average over time."""
        total: Floats = (problem.rates * self.single).sum(axis=1)
        if len(self.first):
            a, b = problem.kinds[self.first], problem.kinds[self.second]
            np.add.at(total, self.first, (problem.beside[a, b] * self.pair).sum(axis=1))
            np.add.at(total, self.second, (problem.beside[b, a] * self.pair).sum(axis=1))
        return total
