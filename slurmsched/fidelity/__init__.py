"""Validation of the simulator against a real Slurm: the same short jobs on both."""
