"""The jobs of a replay, and what two of them make of the same GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae import NOBODY, PairRates, best_edges
from slurmsched.policies.tesserae.layout import Floats
from slurmsched.traces.trace import Trace

__all__ = ["Workload", "kept_beside", "weighed_pairs", "workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs by number, in order of arrival. `work`: seconds alone; `kind`: the place of its model in `models`.

    `kept[k, l]`: what part of its rate alone a job of kind k keeps beside one of kind l, 0 where they do
    not fit together or were not measured. Pairs on more than one GPU keep `wide` times as much.
    """

    arrival: Floats
    work: Floats
    gpus: Ints
    kind: Ints
    models: tuple[str, ...]
    kept: Floats
    wide: float = 1.0

    def __len__(self) -> int:
        return len(self.arrival)

    def speeds(self, job: Ints, partner: Ints) -> Floats:
        """What part of its rate alone each of these jobs has; `partner` is the place of its partner among them, or
        nobody."""
        kind = self.kind[job]
        beside = self.kept[kind, kind[partner]] * np.where(self.gpus[job] > 1, self.wide, 1.0)
        return np.where(partner != NOBODY, beside, 1.0)


def workload(trace: Trace, knowledge: Knowledge, gpu_type: str) -> Workload:
    """The trace's jobs on GPUs of one type, all of them of known models."""
    models = tuple(sorted({job.model for job in trace.jobs}))
    number = {model: place for place, model in enumerate(models)}
    return Workload(
        arrival=np.array([job.arrival for job in trace.jobs]),
        work=np.array([job.duration for job in trace.jobs]),
        gpus=np.array([job.gpus for job in trace.jobs], dtype=np.int64),
        kind=np.array([number[job.model] for job in trace.jobs], dtype=np.int64),
        models=models,
        kept=kept_beside(knowledge, models, gpu_type),
    )


def kept_beside(knowledge: Knowledge, models: Sequence[str], gpu_type: str) -> Floats:
    """By model and partner. Both keep nothing where one would: then they do not run together."""
    beside = [knowledge.models[model].scaling[gpu_type].beside for model in models]
    kept = np.array([[known.get(other, 0.0) for other in models] for known in beside], dtype=np.float64)
    return np.where((kept > 0) & (kept.T > 0), kept, 0.0)


def weighed_pairs(kept: Floats, least: float) -> Floats:
    """Weights for packing. Pairs that together do no more than `least` of one job alone have no edge."""
    rates: list[list[PairRates]] = [
        [{("", ""): (float(own), float(other))} for own, other in zip(row, column, strict=True)]
        for row, column in zip(kept, kept.T, strict=True)
    ]
    return best_edges(rates, least)[1]
