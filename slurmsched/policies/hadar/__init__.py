"""Hadar: one job's tasks on GPUs of several types where that pays, by primal-dual prices (Sultana et al., 2025)."""

from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds
from slurmsched.policies.hadar.deciding import Hadar
from slurmsched.policies.hadar.dual import admit, fill
from slurmsched.policies.hadar.finding import Offer, offers, paying
from slurmsched.policies.hadar.prices import Prices, prices
from slurmsched.policies.hadar.servers import Servers
from slurmsched.policies.hadar.utilities import UTILITIES, Utility, Valuing, effective_throughput, sooner, timely

__all__ = [
    "UTILITIES",
    "Allocation",
    "Ask",
    "Hadar",
    "Offer",
    "Prices",
    "Servers",
    "Speeds",
    "Utility",
    "Valuing",
    "admit",
    "effective_throughput",
    "fill",
    "offers",
    "paying",
    "prices",
    "sooner",
    "timely",
]
