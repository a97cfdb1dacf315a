"""Long runs: weeks of rounds on a simulated cluster with faults of every kind, and whether what is measured
stays flat."""

from slurmsched.endurance.trends import TOLERANCE, Trend, find_trend

__all__ = ["TOLERANCE", "Trend", "find_trend"]
