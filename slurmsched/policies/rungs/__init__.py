"""Ways to find a newcomer a place, least disruptive first."""

from slurmsched.policies.rungs.completing import AfterCompletingJobs
from slurmsched.policies.rungs.displacing import InPlaceOfOthers
from slurmsched.policies.rungs.free import InFreeRoom
from slurmsched.policies.rungs.restarting import BesideRestartedJobs
from slurmsched.policies.rungs.rung import Rung

__all__ = ["AfterCompletingJobs", "BesideRestartedJobs", "InFreeRoom", "InPlaceOfOthers", "Rung"]
