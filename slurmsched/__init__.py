"""Scheduling rounds for deep-learning jobs on GPU clusters that run Slurm."""

__all__ = ["__version__"]

__version__ = "0.1.0"
