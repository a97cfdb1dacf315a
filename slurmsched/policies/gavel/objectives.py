"""Gavel's policies: what each of them makes as large or as small as it can be (sections 4.1 to 4.3).

Each is a pure function of the problem. `Shares.level` is the objective's value: the least multiple of a fair rate for
fairness, the largest rho for finish-time fairness, seconds for the makespan, steps per second for the throughput.
Those that are fair to every job raise PolicyError for a job that can run nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.optimize import brentq

from slurmsched.policies.gavel.equal import equal_shares, proportional_rates
from slurmsched.policies.gavel.problem import Floats, Problem, Shares
from slurmsched.policies.gavel.program import able, max_min, max_sum

__all__ = [
    "Objective",
    "finish_time_fairness",
    "first_in_first_out",
    "least_attained_service",
    "makespan",
    "throughput",
]

Objective = Callable[[Problem], Shares]

_EXACT: Final = 1e-8
"""Relative, of rho."""


def least_attained_service(problem: Problem) -> Shares:
    """Max-min fairness of GPU time: a job's rate over that of its proportional share, times its width, over its weight
    (section 4.1)."""
    return max_min(problem, problem.widths / (problem.weights * proportional_rates(able(problem))))


def makespan(problem: Problem) -> Shares:
    """The soonest that all jobs can be through, in seconds from now (section 4.2)."""
    shares = max_min(able(problem), 1.0 / problem.remaining)
    return replace(shares, level=1.0 / shares.level)


def throughput(problem: Problem) -> Shares:
    """The most steps per second of all jobs together. Jobs whose steps are long starve."""
    return max_sum(problem, np.ones(len(problem.widths)))


def finish_time_fairness(problem: Problem) -> Shares:
    """The least that the largest rho can be: how long a job takes from arrival to end, over how long it would have
    taken on its equal part of the cluster (section 4.2; Themis, NSDI 2020).

    For a given rho, each job is to make its steps in the time that rho leaves it: a max-min program, whose level is 1
    at the least rho and grows with it.
    """
    equal = equal_shares(able(problem))
    alone = problem.alone + problem.remaining / equal.rates(problem)

    def worth(rho: float) -> Floats:
        left: Floats = rho * alone - problem.elapsed
        return left / problem.remaining

    def spare(rho: float) -> float:
        return max_min(problem, worth(rho), middle=False).level - 1.0

    soonest = _largest(problem, problem.rates.max(axis=1), alone)
    fair = _largest(problem, equal.rates(problem), alone)
    rho = fair
    if spare(soonest) >= 0:
        rho = soonest
    elif spare(fair) > 0:
        rho = float(brentq(spare, soonest, fair, rtol=_EXACT))
    return replace(max_min(problem, worth(rho)), level=rho)


def first_in_first_out(problem: Problem) -> Shares:
    """To each job in turn all of its time on the type, of those with room, where it is fastest, until one does not fit;
    `level` is how many jobs that are (Gavel's `fifo_perf`)."""
    single, left = np.zeros_like(problem.rates), problem.gpus.copy()
    for job, (width, rates) in enumerate(zip(problem.widths, problem.rates, strict=True)):
        room = left >= width
        if not room.any():
            break
        best = int(np.argmax(np.where(room, rates, -1.0)))
        if rates[best] > 0:
            single[job, best] = 1.0
            left[best] -= width
    return Shares.unshared(float(single.sum()), single)


def _largest(problem: Problem, rates: Floats, alone: Floats) -> float:
    """The largest rho where jobs make so many steps per second."""
    return float(np.max((problem.elapsed + problem.remaining / rates) / alone))
