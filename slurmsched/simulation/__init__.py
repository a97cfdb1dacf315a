"""Traces run through policies under a virtual clock. Everything here is simulated."""

from slurmsched.simulation.figures import Figures, figures
from slurmsched.simulation.run import Ran, Run, Sample
from slurmsched.simulation.world import Options, Policy, SimulationError, World, policy_of

__all__ = [
    "Figures",
    "Options",
    "Policy",
    "Ran",
    "Run",
    "Sample",
    "SimulationError",
    "World",
    "figures",
    "policy_of",
]
