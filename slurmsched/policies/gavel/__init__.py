"""Gavel (Narayanan et al., OSDI 2020): optimal time fractions on GPU types, and rounds that realise them."""

from slurmsched.policies.gavel.objectives import GAVEL_POLICIES, GavelPolicy, Objective
from slurmsched.policies.gavel.problem import GavelProblem, IsolatedTime, TimeFractions, equal_time_fractions
from slurmsched.policies.gavel.rounds import (
    AllocationLedger,
    JobCombination,
    assign_workers,
    greedy_round,
    rows_by_priority,
)

__all__ = [
    "GAVEL_POLICIES",
    "AllocationLedger",
    "GavelPolicy",
    "GavelProblem",
    "IsolatedTime",
    "JobCombination",
    "Objective",
    "TimeFractions",
    "assign_workers",
    "equal_time_fractions",
    "greedy_round",
    "rows_by_priority",
]
