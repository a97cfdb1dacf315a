"""Synergy's mechanisms as the paper has them: every round places all of its jobs anew, on empty servers.

(Mohan et al., OSDI 2022, section 4.) The live systems of `policies.systems` keep leases and pay for restarts; these do
neither. They are what the paper measured, and the yardstick for ours.
"""

from slurmsched.policies.synergy.asking import Ask, Grant
from slurmsched.policies.synergy.greedy import greedy
from slurmsched.policies.synergy.heterogeneous import Choice, MixedKind, most_throughput_mixed, rounds_of_mixed
from slurmsched.policies.synergy.opt import Kind, Pooled, most_throughput
from slurmsched.policies.synergy.proportional import proportional
from slurmsched.policies.synergy.reading import AUTHORS, OURS, PAPER, Reading
from slurmsched.policies.synergy.servers import Servers
from slurmsched.policies.synergy.spreading import Amount, split_jobs, spread
from slurmsched.policies.synergy.tune import tune

__all__ = [
    "AUTHORS",
    "OURS",
    "PAPER",
    "Amount",
    "Ask",
    "Choice",
    "Grant",
    "Kind",
    "MixedKind",
    "Pooled",
    "Reading",
    "Servers",
    "greedy",
    "most_throughput",
    "most_throughput_mixed",
    "proportional",
    "rounds_of_mixed",
    "split_jobs",
    "spread",
    "tune",
]
