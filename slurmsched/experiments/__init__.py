"""Published figures, measured again."""

from slurmsched.experiments.experiment import Bound, Experiment, ExperimentError, Outcome, Row, Task

__all__ = ["Bound", "Experiment", "ExperimentError", "Outcome", "Row", "Task"]
