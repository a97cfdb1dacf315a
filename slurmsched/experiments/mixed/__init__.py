"""Replays of Gavel, Hadar and HadarE, round by round, on clusters of several GPU types."""

from slurmsched.experiments.mixed.problem import (
    ActiveJob,
    GpuWorkers,
    Grant,
    GrantOutcome,
    ReplayJob,
    RoundInput,
    RoundPolicy,
    gang_rate,
)
from slurmsched.experiments.mixed.replay import ReplayError, ReplayResult, RoundRecord, replay_rounds

__all__ = [
    "ActiveJob",
    "GpuWorkers",
    "Grant",
    "GrantOutcome",
    "ReplayError",
    "ReplayJob",
    "ReplayResult",
    "RoundInput",
    "RoundPolicy",
    "RoundRecord",
    "gang_rate",
    "replay_rounds",
]
