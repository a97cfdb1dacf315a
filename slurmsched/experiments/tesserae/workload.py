"""The jobs of a replay, and their rates when two of them share GPUs."""

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
    """Jobs in order of arrival. `seconds` is the run time alone, `job_type` the index of the model in `models`.

    `relative_rates[k, l]` is the part of its rate that a job of type k keeps beside one of type l, 0 if they do not fit
    together or were not measured. It is multiplied by `wide_pair_factor` for jobs on several GPUs.
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
        """Returns each job's rate relative to running alone. `partner` is its partner's index in `job`, or NO_JOB."""
        job_type = self.job_type[job]
        colocated = self.relative_rates[job_type, job_type[partner]] * np.where(
            self.gpus[job] > 1, self.wide_pair_factor, 1.0
        )
        return np.where(partner != NO_JOB, colocated, 1.0)


def workload_from_trace(trace: Trace, knowledge: Knowledge, gpu_type: str) -> Workload:
    """Returns the trace's jobs, whose models must be known, on GPUs of one type."""
    models = tuple(sorted({job.model for job in trace.jobs}))
    type_index = {model: index for index, model in enumerate(models)}
    return Workload(
        arrival=np.array([job.arrival for job in trace.jobs]),
        seconds=np.array([job.duration for job in trace.jobs]),
        gpus=np.array([job.gpus for job in trace.jobs], dtype=np.int64),
        job_type=np.array([type_index[job.model] for job in trace.jobs], dtype=np.int64),
        models=models,
        relative_rates=colocated_fractions(knowledge, models, gpu_type),
    )


def colocated_fractions(knowledge: Knowledge, models: Sequence[str], gpu_type: str) -> Floats:
    """Returns the part of its rate that a model keeps beside a partner; 0 for both if it is 0 for either."""
    by_model = [knowledge.models[model].scaling[gpu_type].beside for model in models]
    fractions = np.array([[beside.get(other, 0.0) for other in models] for beside in by_model], dtype=np.float64)
    return np.where((fractions > 0) & (fractions.T > 0), fractions, 0.0)


def pair_weights(relative_rates: Floats, min_rate: float) -> Floats:
    """Returns the edge weights for packing. Pairs with a combined rate of at most `min_rate` have no edge."""
    rates: list[list[PairRates]] = [
        [{("", ""): (float(rate), float(other))} for rate, other in zip(row, column, strict=True)]
        for row, column in zip(relative_rates, relative_rates.T, strict=True)
    ]
    return best_edges(rates, min_rate)[1]
