"""Readers for the trace formats of other projects and of Slurm."""
