"""Synergy's mechanisms as published (Mohan et al., OSDI 2022, section 4): every round places all jobs on empty servers.

They are what the paper measured, and the baseline for the policies in `slurmsched.policies`, which keep leases and pay
for restarts.
"""

from slurmsched.experiments.synergy_allocation.mechanisms import place_greedy, place_proportional, place_tune
from slurmsched.experiments.synergy_allocation.opt import (
    JobClass,
    MixedJobClass,
    PooledOpt,
    ResourceAmount,
    TypeChoice,
    count_split_jobs,
    maximise_mixed_in_turn,
    maximise_mixed_throughput,
    maximise_throughput,
    spread_jobs,
)
from slurmsched.experiments.synergy_allocation.problem import (
    AUTHORS,
    OURS,
    PAPER,
    FreeServers,
    SynergyGrant,
    SynergyJob,
    SynergyVariant,
)

__all__ = [
    "AUTHORS",
    "OURS",
    "PAPER",
    "FreeServers",
    "JobClass",
    "MixedJobClass",
    "PooledOpt",
    "ResourceAmount",
    "SynergyGrant",
    "SynergyJob",
    "SynergyVariant",
    "TypeChoice",
    "count_split_jobs",
    "maximise_mixed_in_turn",
    "maximise_mixed_throughput",
    "maximise_throughput",
    "place_greedy",
    "place_proportional",
    "place_tune",
    "spread_jobs",
]
