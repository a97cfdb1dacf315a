"""Gandiva_fair (Chaudhary et al., EuroSys 2020): ticket-fair split stride scheduling with GPU trading."""

from slurmsched.policies.gandiva_fair.accounts import Account, GandivaFairState
from slurmsched.policies.gandiva_fair.policy import GandivaFair
from slurmsched.policies.gandiva_fair.stride import StrideJob, gang_aware_stride, plain_stride
from slurmsched.policies.gandiva_fair.trading import Trade, Trader, trade

__all__ = [
    "Account",
    "GandivaFair",
    "GandivaFairState",
    "StrideJob",
    "Trade",
    "Trader",
    "gang_aware_stride",
    "plain_stride",
    "trade",
]
