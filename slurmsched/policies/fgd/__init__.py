"""Fragmentation gradient descent on Slurm: parts of GPUs, whole GPUs and jobs without any, together."""

from slurmsched.policies.fgd.asking import Asking, asking, usual_workload
from slurmsched.policies.fgd.clearing import Clearing, Tenant, cleared, tenants
from slurmsched.policies.fgd.cluster import FragmentedCluster
from slurmsched.policies.fgd.first_device import FirstDevice
from slurmsched.policies.fgd.leases import ending, has_a_lease
from slurmsched.policies.fgd.seating import Seats
from slurmsched.policies.fgd.system import FragmentationDescent
from slurmsched.policies.fgd.wanting import wanting

__all__ = [
    "Asking",
    "Clearing",
    "FirstDevice",
    "FragmentationDescent",
    "FragmentedCluster",
    "Seats",
    "Tenant",
    "asking",
    "cleared",
    "ending",
    "has_a_lease",
    "tenants",
    "usual_workload",
    "wanting",
]
