"""Validation of the simulator against a real Slurm: the same short jobs on both."""

from slurmsched.fidelity.live_run import generate_workload
from slurmsched.fidelity.validation import Fidelity, FidelityError, measure_fidelity, shorten_period

__all__ = ["Fidelity", "FidelityError", "generate_workload", "measure_fidelity", "shorten_period"]
