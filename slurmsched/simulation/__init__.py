"""Traces run through policies under a virtual clock. Everything here is simulated."""

from slurmsched.simulation.run import Ran, Run, Sample

__all__ = ["Ran", "Run", "Sample"]
