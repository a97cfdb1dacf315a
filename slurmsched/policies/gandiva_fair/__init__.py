"""Gandiva_fair: ticket fairness by split stride scheduling, and trading where GPUs differ."""

from slurmsched.policies.gandiva_fair.deciding import GandivaFair
from slurmsched.policies.gandiva_fair.remembering import Account, Past
from slurmsched.policies.gandiva_fair.stride import Strider, gang_aware, plain
from slurmsched.policies.gandiva_fair.trading import Trade, Trader, trade

__all__ = ["Account", "GandivaFair", "Past", "Strider", "Trade", "Trader", "gang_aware", "plain", "trade"]
