"""Gavel: shares of time on GPU types, and the rounds that keep them (Narayanan et al., OSDI 2020)."""

from slurmsched.policies.gavel.alone import TimeAlone
from slurmsched.policies.gavel.books import Books, Entry
from slurmsched.policies.gavel.equal import equal_shares
from slurmsched.policies.gavel.leasing import seated
from slurmsched.policies.gavel.objectives import Objective
from slurmsched.policies.gavel.picking import by_priority, picked
from slurmsched.policies.gavel.policies import POLICIES, GavelPolicy
from slurmsched.policies.gavel.problem import Problem, Shares

__all__ = [
    "POLICIES",
    "Books",
    "Entry",
    "GavelPolicy",
    "Objective",
    "Problem",
    "Shares",
    "TimeAlone",
    "by_priority",
    "equal_shares",
    "picked",
    "seated",
]
