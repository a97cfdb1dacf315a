"""Gavel's objectives, and its policies by their authors' names (Narayanan et al., OSDI 2020, sections 4.1 to 4.3).

Each objective is a pure function of the problem. `TimeFractions.objective_value` is the lowest multiple of a fair rate
for fairness, the largest rho for finish-time fairness, seconds for the makespan, steps per second for the throughput.
The fair objectives and the makespan raise PolicyError for a job that can run on no GPU type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import brentq

from slurmsched.arrays import Floats
from slurmsched.policies.gavel.problem import GavelProblem, TimeFractions, equal_time_fractions, proportional_rates
from slurmsched.policies.gavel.program import max_min, max_sum, require_runnable

Objective = Callable[[GavelProblem], TimeFractions]

_RHO_TOLERANCE: Final = 1e-8
"""Relative, of rho."""


def least_attained_service(problem: GavelProblem) -> TimeFractions:
    """Maximises the lowest normalised rate: a job's rate over its rate on a proportional share, times its GPUs, over
    its weight (section 4.1)."""
    return max_min(problem, problem.widths / (problem.weights * proportional_rates(require_runnable(problem))))


def makespan(problem: GavelProblem) -> TimeFractions:
    """Minimises the time until all jobs have finished, in seconds from now (section 4.2)."""
    shares = max_min(require_runnable(problem), 1.0 / problem.remaining)
    return replace(shares, objective_value=1.0 / shares.objective_value)


def throughput(problem: GavelProblem) -> TimeFractions:
    """Maximises the steps per second of all jobs together. Jobs with long steps starve."""
    return max_sum(problem, np.ones(len(problem.widths)))


def finish_time_fairness(problem: GavelProblem) -> TimeFractions:
    """Minimises the largest rho: a job's time from arrival to end over that on an equal part of the cluster
    (section 4.2; Themis, NSDI 2020).

    For a given rho each job has to make its remaining steps in the time that rho leaves it. That is a max-min program
    whose value grows with rho and is 1 at the optimum.
    """
    equal = equal_time_fractions(require_runnable(problem))
    isolated = problem.isolated_time + problem.remaining / equal.effective_rates(problem)

    def worth(rho: float) -> Floats:
        left: Floats = rho * isolated - problem.elapsed
        return left / problem.remaining

    def slack(rho: float) -> float:
        return max_min(problem, worth(rho), central=False).objective_value - 1.0

    soonest = _largest_rho(problem, problem.rates.max(axis=1), isolated)
    fair = _largest_rho(problem, equal.effective_rates(problem), isolated)
    rho = fair
    if slack(soonest) >= 0:
        rho = soonest
    elif slack(fair) > 0:
        rho = float(brentq(slack, soonest, fair, rtol=_RHO_TOLERANCE))
    return replace(max_min(problem, worth(rho)), objective_value=rho)


def first_in_first_out(problem: GavelProblem) -> TimeFractions:
    """Gives each job in turn all of its time on the fastest type with enough free GPUs, until a job does not fit.

    `objective_value` is the number of jobs that run (Gavel's `fifo_perf`).
    """
    single, left = np.zeros_like(problem.rates), problem.gpus.copy()
    for job, (width, rates) in enumerate(zip(problem.widths, problem.rates, strict=True)):
        fits = left >= width
        if not fits.any():
            break
        best = int(np.argmax(np.where(fits, rates, -1.0)))
        if rates[best] > 0:
            single[job, best] = 1.0
            left[best] -= width
    return TimeFractions.without_pairs(float(single.sum()), single)


def _largest_rho(problem: GavelProblem, rates: Floats, isolated: Floats) -> float:
    """Returns the largest rho of any job when each makes `rates` steps per second."""
    return float(np.max((problem.elapsed + problem.remaining / rates) / isolated))


@dataclass(frozen=True, slots=True)
class GavelPolicy:
    """An objective and how it sees rates.

    `blind`: it does not distinguish GPU types; all have the rate of type `reference`, or 1 without a reference.
    `packed`: two jobs may share GPUs. `strict`: a job without a time fraction does not run, even on idle GPUs.
    """

    objective: Objective
    blind: bool = False
    reference: str | None = None
    packed: bool = False
    strict: bool = False

    def view(self, problem: GavelProblem, types: Sequence[str]) -> GavelProblem:
        """Returns the problem as this policy sees it. A reference that is not in `types` means the first type."""
        if not self.blind:
            return problem if self.packed else problem.unpacked()
        known = self.reference if self.reference in types else types[0]
        return problem.blind(types.index(known) if self.reference else None)

    def time_fractions(self, problem: GavelProblem, types: Sequence[str]) -> TimeFractions:
        return self.objective(self.view(problem, types))


# fmt: off
GAVEL_POLICIES: Final[Mapping[str, GavelPolicy]] = {
    "max_min_fairness":            GavelPolicy(least_attained_service, blind=True),
    "max_min_fairness_perf":       GavelPolicy(least_attained_service),
    "max_min_fairness_packed":     GavelPolicy(least_attained_service, packed=True),
    "finish_time_fairness":        GavelPolicy(finish_time_fairness, blind=True, reference="v100"),
    "finish_time_fairness_perf":   GavelPolicy(finish_time_fairness),
    "finish_time_fairness_packed": GavelPolicy(finish_time_fairness, packed=True),
    "min_total_duration":          GavelPolicy(makespan, blind=True, reference="v100"),
    "min_total_duration_perf":     GavelPolicy(makespan),
    "min_total_duration_packed":   GavelPolicy(makespan, packed=True),
    "max_sum_throughput_perf":     GavelPolicy(throughput),
    "max_sum_throughput_packed":   GavelPolicy(throughput, packed=True),
    "fifo_perf":                   GavelPolicy(first_in_first_out, strict=True),
    "isolated":                    GavelPolicy(equal_time_fractions),
}
"""Every policy by its name in Gavel, where `_perf` means that it distinguishes GPU types."""
# fmt: on
