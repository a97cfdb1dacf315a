"""Simulation: runs traces through policies on a virtual cluster, under a virtual clock."""

from slurmsched.simulation.inputs import PolicyChoice, Scenario, SimulationError, SimulationOptions, parse_policy
from slurmsched.simulation.results import ClusterSample, JobResult, RunMetrics, SimulationResult, run_metrics

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
