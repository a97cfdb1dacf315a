"""The 480 jobs of Hadar's comparison (section IV-A, table II): four sizes in GPU-hours, at Gavel's rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.mixed.reading import TYPES
from slurmsched.experiments.mixed.work import Work
from slurmsched.knowledge import Knowledge
from slurmsched.traces import TraceJob
from slurmsched.traces.generating import hadar

__all__ = ["READINGS", "as_drawn", "sized_work"]

HOURS_OF: Final = "k80"
"""The GPU whose hours the sizes count. The paper does not say. By K80 hours the work fits its 40 to 68 hours; by V100
hours it would take 340, with the same ratios."""

_MEASURED: Final[Mapping[str, str]] = {
    "resnet-18": "resnet-18-batch-size-128",
    "cyclegan": "cyclegan",
    "lstm": "lm-batch-size-80",
    "transformer": "transformer-batch-size-128",
    "resnet-50": "resnet-50-batch-size-64",
}
"""Table II's models as Gavel's authors measured them, in batches that run on all types at any width."""

_BY_SIZE: Final[Mapping[str, int]] = {"resnet-18": 1, "cyclegan": 2, "lstm": 4, "transformer": 4, "resnet-50": 8}
READINGS: Final[Mapping[str, Callable[[TraceJob], int]]] = {
    "gangs of 4": lambda _job: 4,
    "gangs of 1, 2, 4 and 8 by size": lambda job: _BY_SIZE[job.model],
    "gangs of 8": lambda _job: 8,
}
"""Other widths for the same GPU-hours, of which the paper says nothing: how many a type of 20 GPUs leaves over."""


def as_drawn(job: TraceJob) -> int:
    """The GPUs it has."""
    return job.gpus


def sized_work(jobs: int, seed: int, rates: Knowledge, width: Callable[[TraceJob], int] = as_drawn) -> tuple[Work, ...]:
    """The jobs of `traces.generating.hadar` with Gavel's rates; with another width for the same GPU-hours where that is
    given. Raises ExperimentError."""
    drawn = ((job, width(job)) for job in hadar(jobs, seed).jobs)
    return tuple(
        _work(job.id, _MEASURED[job.model], gpus, job.duration * job.gpus / gpus, rates) for job, gpus in drawn
    )


def _work(job: str, model: str, width: int, seconds: float, rates: Knowledge) -> Work:
    profile = rates.models.get(model)
    if profile is None or HOURS_OF not in profile.scaling:
        raise ExperimentError(f"throughputs.json has no rates of {model} on {HOURS_OF}: use the data set's own")
    known = {kind: profile.scaling[kind].at(width) for kind in TYPES if kind in profile.scaling}
    return Work(job, width, max(width, round(seconds * known[HOURS_OF])), known, model=model)
