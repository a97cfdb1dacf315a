"""Hadar: the tasks of one job on GPUs of several types where that pays, by primal-dual prices (Sultana et al., 2025)."""

from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds
from slurmsched.policies.hadar.deciding import Hadar
from slurmsched.policies.hadar.dual import admit, fill
from slurmsched.policies.hadar.prices import Prices, prices
from slurmsched.policies.hadar.servers import Servers
from slurmsched.policies.hadar.utilities import UTILITIES, Utility, effective_throughput, sooner, speed

__all__ = [
    "UTILITIES",
    "Allocation",
    "Ask",
    "Hadar",
    "Prices",
    "Servers",
    "Speeds",
    "Utility",
    "admit",
    "effective_throughput",
    "fill",
    "prices",
    "sooner",
    "speed",
]
