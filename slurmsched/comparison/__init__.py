"""Comparison of policies: the same jobs simulated under several policies, loads and seeds."""

from slurmsched.comparison.sweep import CellResult, FailedCell, Sweep, SweepCell, build_sweep, run_cell, run_locally

__all__ = ["CellResult", "FailedCell", "Sweep", "SweepCell", "build_sweep", "run_cell", "run_locally"]
