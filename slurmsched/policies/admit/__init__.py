"""Ways to admit a newcomer, least disruptive first."""

from slurmsched.policies.admit.allocate import AllocateFree, WaitForCompleting
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.admit.shrink import ShrinkRunning

__all__ = ["AllocateFree", "Preempt", "ShrinkRunning", "WaitForCompleting"]
