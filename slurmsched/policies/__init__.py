"""Who runs where with what: pure decisions over one snapshot."""

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.protocol import Ordering, Outranks, Situation, System
from slurmsched.policies.systems import ORDERS, SYSTEMS, system

__all__ = ["ORDERS", "SYSTEMS", "Ordering", "Outranks", "PolicyError", "Situation", "System", "system"]
