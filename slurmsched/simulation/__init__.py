"""Traces run through policies under a virtual clock. Everything here is simulated."""

from slurmsched.simulation.inputs import PolicyChoice, Scenario, SimulationError, SimulationOptions, parse_policy
from slurmsched.simulation.metrics import RunMetrics, run_metrics
from slurmsched.simulation.results import ClusterSample, JobResult, SimulationResult

__all__ = [
    "ClusterSample",
    "JobResult",
    "PolicyChoice",
    "RunMetrics",
    "Scenario",
    "SimulationError",
    "SimulationOptions",
    "SimulationResult",
    "parse_policy",
    "run_metrics",
]
