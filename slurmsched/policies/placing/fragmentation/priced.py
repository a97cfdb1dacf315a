"""Fragmentation gradient descent with an eye on what a device's rest is good for: better than the paper's.

F counts what is too small for one task of M at a time, so to it 530 left of a GPU are as good beside 470 as 190 are bad
beside 810, whatever else could complete them. Most of what FGD strands at full load are such rests: 276 of 302 GPUs on
openb's default trace. Here a part of a GPU first goes where the worth of the device (`prices`) falls by the least,
which leaves rests that pieces of M fill; the rounded descent decides among equals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.descent import Descent
from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.measure import Measure
from slurmsched.policies.placing.fragmentation.prices import worth
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["PricedDescent"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST = 1000.0
"""One GPU's worth outweighs every descent, which is of 0 to 100."""


@dataclass(frozen=True)
class PricedDescent:
    """Worth first, descent second."""

    measure: Measure
    name: str = "fgd_priced"
    _worth: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_worth", worth(self.measure.workload))

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:  # noqa: ARG002 as every heuristic is called
        return np.asarray(self.by_device(task, nodes).max(axis=1), dtype=np.float64)

    def device(self, idle: Idle, task: Task, node: int) -> int:  # noqa: ARG002 as every heuristic is called
        return int(self.by_device(task, np.array([node]))[0].argmax())

    def by_device(self, task: Task, nodes: Ints) -> Floats:
        """Scores by device for a part of a GPU; [nodes, devices or 1]."""
        descent = Descent(self.measure, rounded=True).by_device(task, nodes)
        if not task.partial:
            return descent
        parts = self.measure.idle.gpus[nodes]
        fits = parts >= task.milli
        lost = self._worth[parts] - self._worth[np.where(fits, parts - task.milli, 0)]
        return np.where(fits, descent - _FIRST * lost, -np.inf)
