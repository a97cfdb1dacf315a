"""The question to Gavel's policies: rates, widths and what there is; and their answer (section 3.1).

Everybody's equal part of the cluster, which fairness is measured against (Gavel, section 4.1).

How long what jobs have done so far would have taken on their equal parts of the cluster, which change with the
number of jobs (Gavel, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def _no_colocation() -> Floats:
    return np.zeros((0, 0, 0))


@dataclass(frozen=True, eq=False, slots=True)
class GavelProblem:
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
    isolated_time: Floats
    weights: Floats
    job_types: Ints
    colocated_rates: Floats = field(default_factory=_no_colocation)

    @classmethod
    def of(cls, gpus: Floats, rates: Floats, widths: Floats) -> GavelProblem:
        """Jobs of weight 1 that have just arrived, each of a kind of its own, with one step to go; nobody shares."""
        ones, zeros = np.ones(len(rates)), np.zeros(len(rates))
        return cls(gpus, rates, widths, ones, zeros, zeros, ones, np.arange(len(rates)))

    @property
    def packed(self) -> bool:
        """Whether two jobs may share GPUs."""
        return bool(self.colocated_rates.size)

    def unpacked(self) -> GavelProblem:
        """The same where nobody shares."""
        return replace(self, colocated_rates=_no_colocation()) if self.packed else self

    def blind(self, reference: int | None = None) -> GavelProblem:
        """The same to a policy that does not tell GPU types apart: everywhere the rate on the reference type, or the
        best where the job cannot run on that; without a reference 1."""
        rates = np.ones_like(self.rates)
        if reference is not None:
            known = self.rates[:, reference]
            rates *= np.where(known > 0, known, self.rates.max(axis=1))[:, None]
        return replace(self.unpacked(), rates=rates)


@dataclass(frozen=True, eq=False, slots=True)
class TimeFractions:
    """Parts of wall time. `single[j, w]`: of job j alone on type w. `first` and `second`: the jobs of each pair, the
    lower first, and `pair[p, w]` its part. `level`: the objective's value."""

    objective_value: float
    single: Floats
    first: Ints
    second: Ints
    pair: Floats

    @classmethod
    def without_pairs(cls, level: float, single: Floats) -> TimeFractions:
        nobody: Ints = np.zeros(0, dtype=np.int64)
        return cls(level, single, nobody, nobody, np.zeros((0, single.shape[1])))

    def effective_rates(self, problem: GavelProblem) -> Floats:
        """Steps per second that each job makes of its shares, on average over time."""
        total: Floats = (problem.rates * self.single).sum(axis=1)
        if len(self.first):
            a, b = problem.job_types[self.first], problem.job_types[self.second]
            np.add.at(total, self.first, (problem.colocated_rates[a, b] * self.pair).sum(axis=1))
            np.add.at(total, self.second, (problem.colocated_rates[b, a] * self.pair).sum(axis=1))
        return total


def equal_time_fractions(problem: GavelProblem) -> TimeFractions:
    """To each job an equal part of the GPUs of every type, or as much of that as it has time for; `level` is the least
    part of its time that any job has."""
    jobs = max(len(problem.widths), 1)
    single: Floats = problem.gpus / (jobs * problem.widths[:, None])
    single /= np.maximum(single.sum(axis=1, keepdims=True), 1.0)
    return TimeFractions.without_pairs(float(single.sum(axis=1).min(initial=1.0)), single)


def proportional_rates(problem: GavelProblem) -> Floats:
    """Steps per second of each job if all its time were divided over the types as the GPUs are."""
    rates: Floats = problem.rates @ (problem.gpus / problem.gpus.sum())
    return rates


@dataclass(slots=True)
class IsolatedTime:
    """Looked at whenever shares are computed."""

    _last: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Of each job at the last look: the seconds, steps done, steps per second on its equal part."""

    def update(self, problem: GavelProblem, jobs: Sequence[str], done: Floats) -> Floats:
        """By job of the problem, of which so many steps are done. Who is not among them is forgotten."""
        now: dict[str, tuple[float, float, float]] = {}
        for job, steps, rate in zip(
            jobs, done.tolist(), equal_time_fractions(problem).effective_rates(problem).tolist(), strict=True
        ):
            so_far, before, was = self._last.get(job, (0.0, 0.0, rate))
            now[job] = (so_far + (steps - before) / was, steps, rate)
        self._last = now
        return np.array([so_far for so_far, _, _ in now.values()])
