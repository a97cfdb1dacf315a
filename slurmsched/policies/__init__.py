"""Who runs where with what: pure decisions over one snapshot."""

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.policies import ORDERS, POLICIES, policy
from slurmsched.policies.stages import Order, Policy, PreemptionRule, Situation

__all__ = ["ORDERS", "POLICIES", "Order", "Policy", "PolicyError", "PreemptionRule", "Situation", "policy"]
