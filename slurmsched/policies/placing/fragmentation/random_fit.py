"""Random fit (section 6.1): any node that fits, and any device that does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.scoring import Scores
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["RandomFit", "RandomScores"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RandomFit:
    """All nodes that fit are equal."""

    random: np.random.Generator
    name: str = "random_fit"

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:  # noqa: ARG002 as the protocol has it
        return np.zeros(len(nodes))

    def device(self, idle: Idle, task: Task, node: int) -> int:
        return int(self.random.choice(np.flatnonzero(idle.gpus[node] >= task.milli)))


class RandomScores(Scores):
    """Draws among the nodes that fit, where all others take the first of the best."""

    def choose(self, task: Task) -> int | None:
        able = np.flatnonzero(self.row(task) == 0)
        assert isinstance(self.heuristic, RandomFit)
        return int(self.heuristic.random.choice(able)) if len(able) else None
