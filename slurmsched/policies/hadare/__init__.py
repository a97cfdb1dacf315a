"""HadarE: copies of one job on many nodes at once, so that no node is idle (Sultana et al., section V)."""

from slurmsched.policies.hadare.dispatching import dispatched
from slurmsched.policies.hadare.errors import TrackingError
from slurmsched.policies.hadare.estimating import Machine, Model, Throughputs, estimate, learned_unit
from slurmsched.policies.hadare.forking import copies, copy_id, parent_of
from slurmsched.policies.hadare.sharing import Forked, shared
from slurmsched.policies.hadare.tracking import JobTracker, Lease

__all__ = [
    "Forked",
    "JobTracker",
    "Lease",
    "Machine",
    "Model",
    "Throughputs",
    "TrackingError",
    "copies",
    "copy_id",
    "dispatched",
    "estimate",
    "learned_unit",
    "parent_of",
    "shared",
]
