"""The jobs of a replay, and what two of them make of the same GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.knowledge import Knowledge
from slurmsched.policies.tesserae.migration import NO_JOB
from slurmsched.policies.tesserae.packing import PairRates, best_edges
from slurmsched.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs by number, in order of arrival. `work`: seconds alone; `kind`: the place of its model in `models`.

    `kept[k, l]`: what part of its rate alone a job of kind k keeps beside one of kind l, 0 where they do
    not fit together or were not measured. Pairs on more than one GPU keep `wide` times as much.
    """

    arrival: Floats
    seconds: Floats
    gpus: Ints
    job_type: Ints
    models: tuple[str, ...]
    relative_rates: Floats
    wide_pair_factor: float = 1.0

    def __len__(self) -> int:
        return len(self.arrival)

    def speeds(self, job: Ints, partner: Ints) -> Floats:
        """What part of its rate alone each of these jobs has; `partner` is the place of its partner among them, or
        nobody."""
        job_type = self.job_type[job]
        colocated = self.relative_rates[job_type, job_type[partner]] * np.where(
            self.gpus[job] > 1, self.wide_pair_factor, 1.0
        )
        return np.where(partner != NO_JOB, colocated, 1.0)


def workload_from_trace(trace: Trace, knowledge: Knowledge, gpu_type: str) -> Workload:
    """The trace's jobs on GPUs of one type, all of them of known models."""
    models = tuple(sorted({job.model for job in trace.jobs}))
    number = {model: place for place, model in enumerate(models)}
    return Workload(
        arrival=np.array([job.arrival for job in trace.jobs]),
        seconds=np.array([job.duration for job in trace.jobs]),
        gpus=np.array([job.gpus for job in trace.jobs], dtype=np.int64),
        job_type=np.array([number[job.model] for job in trace.jobs], dtype=np.int64),
        models=models,
        relative_rates=colocated_fractions(knowledge, models, gpu_type),
    )


def colocated_fractions(knowledge: Knowledge, models: Sequence[str], gpu_type: str) -> Floats:
    """By model and partner. Both keep nothing where one would: then they do not run together."""
    by_model = [knowledge.models[model].scaling[gpu_type].beside for model in models]
    fractions = np.array([[known.get(other, 0.0) for other in models] for known in by_model], dtype=np.float64)
    return np.where((fractions > 0) & (fractions.T > 0), fractions, 0.0)


def pair_weights(relative_rates: Floats, min_rate: float) -> Floats:
    """Weights for packing. Pairs that together do no more than `least` of one job alone have no edge."""
    rates: list[list[PairRates]] = [
        [{("", ""): (float(own), float(other))} for own, other in zip(row, column, strict=True)]
        for row, column in zip(relative_rates, relative_rates.T, strict=True)
    ]
    return best_edges(rates, min_rate)[1]
