"""A simulated cluster behind the Backend protocol, for the demo, tests and experiments; its clock is virtual."""

from slurmsched.backends.simulated.backend import SimulatedBackend
from slurmsched.backends.simulated.cluster import VirtualCluster
from slurmsched.backends.simulated.events import NO_FAULTS, Fault, FaultPlan, SimulatedEventKind, VirtualClock
from slurmsched.backends.simulated.job import (
    JobSubmitHook,
    SimulatedJob,
    Speed,
    Submission,
    UsageInterval,
    profiled_speed,
    proportional_speed,
)
from slurmsched.backends.simulated.lifecycle import Delays

__all__ = [
    "NO_FAULTS",
    "Delays",
    "Fault",
    "FaultPlan",
    "JobSubmitHook",
    "SimulatedBackend",
    "SimulatedEventKind",
    "SimulatedJob",
    "Speed",
    "Submission",
    "UsageInterval",
    "VirtualClock",
    "VirtualCluster",
    "profiled_speed",
    "proportional_speed",
]
