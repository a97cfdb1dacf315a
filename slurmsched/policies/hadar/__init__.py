"""Hadar (Sultana et al., 2025): primal-dual prices; a gang may run on GPUs of several types where that pays."""

from slurmsched.policies.hadar.primal_dual import (
    HadarScheduler,
    PricedAllocation,
    Prices,
    compute_prices,
    dp_allocation,
    fill_idle,
    find_alloc,
    payoffs,
)
from slurmsched.policies.hadar.problem import (
    UTILITIES,
    GangThroughput,
    HadarJob,
    ServerPools,
    TaskAllocation,
    Utility,
    UtilityFactory,
    effective_throughput,
    shortest_first,
    slack_aware,
)

__all__ = [
    "UTILITIES",
    "GangThroughput",
    "HadarJob",
    "HadarScheduler",
    "PricedAllocation",
    "Prices",
    "ServerPools",
    "TaskAllocation",
    "Utility",
    "UtilityFactory",
    "compute_prices",
    "dp_allocation",
    "effective_throughput",
    "fill_idle",
    "find_alloc",
    "payoffs",
    "shortest_first",
    "slack_aware",
]
