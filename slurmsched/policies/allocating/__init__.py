"""How many CPUs and how much memory go with the GPUs."""

from slurmsched.policies.allocating.as_requested import AsRequested
from slurmsched.policies.allocating.greedy import Greedy
from slurmsched.policies.allocating.portion import Allocating, Portion, Terms
from slurmsched.policies.allocating.proportional import Proportional
from slurmsched.policies.allocating.tune import Tune

__all__ = ["Allocating", "AsRequested", "Greedy", "Portion", "Proportional", "Terms", "Tune"]
