"""The simulator held against a real Slurm: the same jobs on both, in a small time."""

from slurmsched.fidelity.comparing import Fidelity, FidelityError, measure, quickened
from slurmsched.fidelity.workload import workload

__all__ = ["Fidelity", "FidelityError", "measure", "quickened", "workload"]
