"""Who comes first."""

from slurmsched.policies.ordering.alignment import Alignment
from slurmsched.policies.ordering.attained_service import LeastAttainedService
from slurmsched.policies.ordering.dominant_share import DominantShare
from slurmsched.policies.ordering.fairness import FinishTimeFairness
from slurmsched.policies.ordering.fifo import FirstInFirstOut
from slurmsched.policies.ordering.priority import SlurmPriority
from slurmsched.policies.ordering.remaining_time import ShortestRemainingTime

__all__ = [
    "Alignment",
    "DominantShare",
    "FinishTimeFairness",
    "FirstInFirstOut",
    "LeastAttainedService",
    "ShortestRemainingTime",
    "SlurmPriority",
]
