"""Reproductions of published figures."""

from slurmsched.experiments.experiment import (
    Bound,
    Experiment,
    ExperimentError,
    ExperimentResult,
    ExperimentSetup,
    FigureRow,
)

__all__ = ["Bound", "Experiment", "ExperimentError", "ExperimentResult", "ExperimentSetup", "FigureRow"]
