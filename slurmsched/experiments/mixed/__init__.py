"""Clusters of several GPU types, replayed round by round."""

from slurmsched.experiments.mixed.figures import Replayed, RoundRecord
from slurmsched.experiments.mixed.replay import ReplayError, replay
from slurmsched.experiments.mixed.rounds import Grant, Question, RoundPolicy, Served
from slurmsched.experiments.mixed.work import Active, Work, rate
from slurmsched.experiments.mixed.workers import Workers

__all__ = [
    "Active",
    "Grant",
    "Question",
    "ReplayError",
    "Replayed",
    "RoundPolicy",
    "RoundRecord",
    "Served",
    "Work",
    "Workers",
    "rate",
    "replay",
]
