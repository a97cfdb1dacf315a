"""The same work under several policies, at several loads, with several seeds."""

from slurmsched.comparison.sweep import CellResult, FailedCell, Sweep, SweepCell, build_sweep, run_cell, run_locally

__all__ = ["CellResult", "FailedCell", "Sweep", "SweepCell", "build_sweep", "run_cell", "run_locally"]
