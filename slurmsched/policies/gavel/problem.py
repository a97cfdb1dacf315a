"""The input and output of Gavel's objectives (Narayanan et al., OSDI 2020, section 3.1), and the equal share that
fairness is measured against (sections 4.1 and 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurmsched.arrays import Floats, Ints


def _no_colocation() -> Floats:
    return np.zeros((0, 0, 0))


@dataclass(frozen=True, eq=False, slots=True)
class GavelProblem:
    """Arrays over jobs and GPU types.

    `rates[j, w]`: steps per second of the whole job j on `widths[j]` GPUs of type w, 0 where it cannot run; `gpus[w]`:
    GPUs of type w. `remaining`: steps left; `elapsed`: seconds since arrival; `isolated_time`: seconds that its steps
    so far would have taken on an equal part of the cluster; `weights`: priority weights.

    `colocated_rates[k, l, w]`: steps per second of a job of type k that shares GPUs of type w with one of type l, 0
    where they cannot share; `job_types[j]` is the type of job j. Empty where jobs do not share GPUs.
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
        """Returns jobs of weight 1 that have just arrived, each of its own type, with one step left and no sharing."""
        ones, zeros = np.ones(len(rates)), np.zeros(len(rates))
        return cls(gpus, rates, widths, ones, zeros, zeros, ones, np.arange(len(rates)))

    @property
    def packed(self) -> bool:
        """Whether two jobs may share GPUs."""
        return bool(self.colocated_rates.size)

    def unpacked(self) -> GavelProblem:
        """Returns the problem without sharing."""
        return replace(self, colocated_rates=_no_colocation()) if self.packed else self

    def blind(self, reference: int | None = None) -> GavelProblem:
        """Returns the problem for a policy that does not distinguish GPU types.

        Every rate is that on the reference type, or the job's best if it cannot run there; without a reference 1.
        """
        rates = np.ones_like(self.rates)
        if reference is not None:
            known = self.rates[:, reference]
            rates *= np.where(known > 0, known, self.rates.max(axis=1))[:, None]
        return replace(self.unpacked(), rates=rates)


@dataclass(frozen=True, eq=False, slots=True)
class TimeFractions:
    """Fractions of wall time: `single[j, w]` of job j alone on type w, `pair[p, w]` of pair p.

    `first` and `second` are the jobs of each pair, the lower index first.
    """

    objective_value: float
    single: Floats
    first: Ints
    second: Ints
    pair: Floats

    @classmethod
    def without_pairs(cls, objective_value: float, single: Floats) -> TimeFractions:
        no_jobs: Ints = np.zeros(0, dtype=np.int64)
        return cls(objective_value, single, no_jobs, no_jobs, np.zeros((0, single.shape[1])))

    def effective_rates(self, problem: GavelProblem) -> Floats:
        """Returns the steps per second of each job, averaged over time."""
        total: Floats = (problem.rates * self.single).sum(axis=1)
        if len(self.first):
            a, b = problem.job_types[self.first], problem.job_types[self.second]
            np.add.at(total, self.first, (problem.colocated_rates[a, b] * self.pair).sum(axis=1))
            np.add.at(total, self.second, (problem.colocated_rates[b, a] * self.pair).sum(axis=1))
        return total


def equal_time_fractions(problem: GavelProblem) -> TimeFractions:
    """Gives each job an equal part of the GPUs of every type, or as much of that as it has time for.

    `objective_value` is the smallest fraction of its time that any job gets.
    """
    jobs = max(len(problem.widths), 1)
    single: Floats = problem.gpus / (jobs * problem.widths[:, None])
    single /= np.maximum(single.sum(axis=1, keepdims=True), 1.0)
    return TimeFractions.without_pairs(float(single.sum(axis=1).min(initial=1.0)), single)


def proportional_rates(problem: GavelProblem) -> Floats:
    """Returns the steps per second of each job if its time were divided over the types in proportion to their GPUs."""
    rates: Floats = problem.rates @ (problem.gpus / problem.gpus.sum())
    return rates


@dataclass(slots=True)
class IsolatedTime:
    """How long the steps that jobs have done would have taken on an equal part of the cluster (section 4.2).

    That part changes with the number of jobs, so this is updated whenever time fractions are computed.
    """

    _last: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """By job at the last update: isolated seconds, steps done, steps per second on an equal part."""

    def update(self, problem: GavelProblem, jobs: Sequence[str], done: Floats) -> Floats:
        """Returns the isolated seconds of `jobs`, of which `done` steps are done. Other jobs are forgotten."""
        now: dict[str, tuple[float, float, float]] = {}
        for job, steps, rate in zip(
            jobs, done.tolist(), equal_time_fractions(problem).effective_rates(problem).tolist(), strict=True
        ):
            so_far, before, was = self._last.get(job, (0.0, 0.0, rate))
            now[job] = (so_far + (steps - before) / was, steps, rate)
        self._last = now
        return np.array([so_far for so_far, _, _ in now.values()])
