"""Validation of the simulator against a real Slurm: the same short jobs on both."""

from slurmsched.fidelity.validation import Fidelity, FidelityError, generate_workload, measure_fidelity, shorten_period

__all__ = ["Fidelity", "FidelityError", "generate_workload", "measure_fidelity", "shorten_period"]
