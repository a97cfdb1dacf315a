"""A virtual cluster behind the Backend protocol, for the demo, tests and experiments. No time passes, nothing runs."""

from slurmsched.backends.simulated.agenda import Happening
from slurmsched.backends.simulated.backend import SimulatedBackend
from slurmsched.backends.simulated.clock import VirtualClock
from slurmsched.backends.simulated.cluster import Cluster
from slurmsched.backends.simulated.disturbances import CALM, Disturbance, Disturbances
from slurmsched.backends.simulated.hook import JobSubmit
from slurmsched.backends.simulated.job import SimulatedJob, Submission
from slurmsched.backends.simulated.lifecycle import Delays
from slurmsched.backends.simulated.work import Interval, Speed, profiled_speed, proportional_speed

__all__ = [
    "CALM",
    "Cluster",
    "Delays",
    "Disturbance",
    "Disturbances",
    "Happening",
    "Interval",
    "JobSubmit",
    "SimulatedBackend",
    "SimulatedJob",
    "Speed",
    "Submission",
    "VirtualClock",
    "profiled_speed",
    "proportional_speed",
]
