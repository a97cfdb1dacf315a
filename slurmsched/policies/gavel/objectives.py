"""Gavel's policies as published: what each of them makes largest or smallest (sections 4.1 to 4.3).

Each is a pure function of the problem. Their `level` is the objective's value: that of fairness is a part or multiple of
the equal share, of finish-time fairness the largest rho, of the makespan seconds, of the throughput steps per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from slurmsched.policies.gavel.equal import equal_shares, proportional_rates
from slurmsched.policies.gavel.problem import Floats, Problem, Shares
from slurmsched.policies.gavel.program import max_min, max_sum

__all__ = ["Objective", "finish_time_fairness", "least_attained_service", "makespan", "throughput"]

Objective = Callable[[Problem], Shares]

_ENOUGH: Final = 1e-6
"""Relative; a step of the search for rho that gains less is the last."""


def least_attained_service(problem: Problem) -> Shares:
    """Max-min fairness of GPU time: the least job's rate over that of its proportional share, times its width, over its
    weight (section 4.1)."""
    return max_min(problem, problem.widths / (problem.weights * proportional_rates(problem)))


def makespan(problem: Problem) -> Shares:
    """The soonest that all jobs are through, in seconds from now (section 4.2)."""
    shares = max_min(problem, 1.0 / problem.remaining)
    return replace(shares, level=1.0 / shares.level)


def throughput(problem: Problem) -> Shares:
    """The most steps per second of all jobs together. It starves jobs whose steps are long."""
    return max_sum(problem, np.ones(len(problem.widths)))


def finish_time_fairness(problem: Problem) -> Shares:
    """The least possible of the largest rho: how long a job takes from arrival to end, over how long it would have taken
    on its equal part of the cluster (section 4.2; Themis).

    All jobs are at rho or better where each makes its remaining steps in the time that rho leaves it: a max-min program
    for every rho. Its shares show how much better rho can be at least; from there on again.
    """
    equal = equal_shares(problem)
    alone = problem.alone + problem.remaining / equal.rates(problem)
    best, rho = equal, _largest(problem, equal, alone)
    while True:
        left = rho * alone - problem.elapsed
        found = max_min(problem, left / problem.remaining)
        better = _largest(problem, found, alone)
        if not better < rho * (1 - _ENOUGH):
            return replace(best, level=rho)
        best, rho = found, better


def _largest(problem: Problem, shares: Shares, alone: Floats) -> float:
    taken: Floats = problem.elapsed + problem.remaining / shares.rates(problem)
    return float(np.max(taken / alone, initial=0.0))
