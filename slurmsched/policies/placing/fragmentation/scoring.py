"""What a heuristic is, and the table of scores that is kept up to date as nodes change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["Heuristic", "Scores", "smallest_device"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Heuristic(Protocol):
    """A preference among nodes that all fit, and among the devices of one."""

    @property
    def name(self) -> str: ...

    def scores(self, idle: Idle, task: Task, nodes: Ints) -> Floats:
        """How good each of these nodes is, the highest best; meaningless where the task does not fit. [nodes]"""

    def device(self, idle: Idle, task: Task, node: int) -> int:
        """The device for a part of a GPU, on a node where it fits."""


def smallest_device(idle: Idle, task: Task, node: int) -> int:
    """The fullest device that still holds the task; the lowest of equals."""
    parts = idle.gpus[node]
    return int(np.argmin(np.where(parts >= task.milli, parts, np.iinfo(np.int64).max)))


@dataclass(slots=True)
class _Row:
    scores: Floats
    seen: int
    """How much of the log it knows of."""


@dataclass(slots=True)
class Scores:
    """Chooses a node for one task after another. A placement changes one node, so only what has changed since a kind of
    task was last asked about is looked at again, and of nodes in the same state only one."""

    idle: Idle
    heuristic: Heuristic
    _rows: dict[Task, _Row] = field(default_factory=dict)

    def row(self, task: Task) -> Floats:
        """The score of every node, minus infinity where the task does not fit; [nodes]."""
        known, log = self._rows.get(task), self.idle.log
        if known is None:
            known = self._rows[task] = _Row(np.full(len(self.idle), -np.inf), 0)
            self._refresh(known, task, np.arange(len(self.idle)))
        elif known.seen < len(log):
            self._refresh(known, task, np.unique(log[known.seen :]))
        known.seen = len(log)
        return known.scores

    def choose(self, task: Task, among: Mask | None = None) -> int | None:
        """The best node, the first of equals, of these or of all; None where the task fits on none of them."""
        row = self.row(task) if among is None else np.where(among, self.row(task), -np.inf)
        best = int(row.argmax())
        return None if row[best] == -np.inf else best

    def place(self, task: Task, among: Mask | None = None) -> tuple[int, tuple[int, ...]] | None:
        """Put the task on the best node; that node and the devices."""
        node = self.choose(task, among)
        if node is None:
            return None
        devices = self.devices(task, node)
        self.idle.take(node, task, devices)
        return node, devices

    def devices(self, task: Task, node: int) -> tuple[int, ...]:
        """Which ones the task takes on this node."""
        if task.partial:
            return (self.heuristic.device(self.idle, task, node),)
        return self.idle.lowest(node, task)

    def _refresh(self, row: _Row, task: Task, nodes: Ints) -> None:
        fits = self.idle.fits(task, nodes)
        row.scores[nodes] = -np.inf
        able = nodes[fits]
        if len(able):
            _, first, alike = np.unique(self.idle.state[able], return_index=True, return_inverse=True)
            row.scores[able] = self.heuristic.scores(self.idle, task, able[first])[alike]
