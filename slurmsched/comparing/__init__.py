"""The same work under several policies, at several loads, with several seeds."""

from slurmsched.comparing.sweep import Cell, Sweep, sweep
from slurmsched.comparing.sweeping import Lost, Result, run_cell, run_here

__all__ = ["Cell", "Lost", "Result", "Sweep", "run_cell", "run_here", "sweep"]
