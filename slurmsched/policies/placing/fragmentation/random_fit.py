"""Random fit (section 6.1): any node that fits, and any device that does."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.scoring import Scores
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["RandomFit", "RandomScores"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RandomFit:
    """All nodes that fit are equal."""

    random: np.random.Generator
    name: str = "random_fit"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:  # noqa: ARG002 as the protocol has it
        return np.zeros(len(nodes))

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return int(self.random.choice(np.flatnonzero(idle.gpus[node] >= task.milli)))


@dataclass(slots=True)
class RandomScores(Scores):
    """Draws among the best nodes, where others take the first of them."""

    random: np.random.Generator = field(kw_only=True)

    def choose(self, task: Task, among: Mask | None = None) -> int | None:
        row = self.row(task) if among is None else np.where(among, self.row(task), -np.inf)
        able = np.flatnonzero((row == row.max()) & (row > -np.inf))
        return int(self.random.choice(able)) if len(able) else None
