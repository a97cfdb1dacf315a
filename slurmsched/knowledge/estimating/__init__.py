"""Rates that were not measured, from those that were (Tesserae, section 4.3)."""

from slurmsched.knowledge.estimating.completion import completed
from slurmsched.knowledge.estimating.gaussian import GaussianProcess
from slurmsched.knowledge.estimating.linear import data_parallel
from slurmsched.knowledge.estimating.noise import noisy
from slurmsched.knowledge.estimating.searching import Searched, search, search_at_random
from slurmsched.knowledge.estimating.strategies import Strategy, strategies

__all__ = [
    "GaussianProcess",
    "Searched",
    "Strategy",
    "completed",
    "data_parallel",
    "noisy",
    "search",
    "search_at_random",
    "strategies",
]
