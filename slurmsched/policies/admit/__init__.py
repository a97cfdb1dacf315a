"""The steps that admit a newcomer: on free resources, on those of completing jobs, by shrinking or preempting jobs."""

from slurmsched.policies.admit.allocate import AllocateFree, WaitForCompleting
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.admit.shrink import ShrinkRunning

__all__ = ["AllocateFree", "Preempt", "ShrinkRunning", "WaitForCompleting"]
