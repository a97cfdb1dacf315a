"""Gavel's policies by the names its authors gave them: an objective, and how rates are seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.policies.gavel.equal import equal_shares
from slurmsched.policies.gavel.objectives import (
    Objective,
    finish_time_fairness,
    first_in_first_out,
    least_attained_service,
    makespan,
    throughput,
)
from slurmsched.policies.gavel.problem import Problem, Shares

__all__ = ["POLICIES", "GavelPolicy"]


@dataclass(frozen=True, slots=True)
class GavelPolicy:
    """`blind`: it does not tell GPU types apart; then `reference` is the type whose rate it takes for all of them, or
    every rate is 1. `packed`: two jobs may share GPUs. `strict`: who has no share does not run, though GPUs idle."""

    objective: Objective
    blind: bool = False
    reference: str | None = None
    packed: bool = False
    strict: bool = False

    def seen(self, problem: Problem, types: Sequence[str]) -> Problem:
        """The problem as this policy sees it; `types` are its GPU types. A reference that is not there is the first."""
        if not self.blind:
            return problem if self.packed else problem.unpacked()
        known = self.reference if self.reference in types else types[0]
        return problem.blind(types.index(known) if self.reference else None)

    def shares(self, problem: Problem, types: Sequence[str]) -> Shares:
        return self.objective(self.seen(problem, types))


# fmt: off
POLICIES: Final[Mapping[str, GavelPolicy]] = {
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
    "isolated":                    GavelPolicy(equal_shares),
}
"""Every policy by name. That of max-min fairness without `_perf` is the one that is blind."""
# fmt: on
