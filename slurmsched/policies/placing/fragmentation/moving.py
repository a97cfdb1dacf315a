"""Placing that may move one running task to make room for one that fits nowhere, a bounded number of times.

What FGD strands in the end is rests of shared GPUs. Where a device is shared by a task that some other rest would hold,
moving it there frees what a whole GPU needs. A move costs a checkpoint and a restart, so the smallest task moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.fragmentation.idle import Idle
from slurmsched.policies.placing.fragmentation.scoring import Scores
from slurmsched.policies.placing.fragmentation.task import Task

__all__ = ["MovingScores"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class _Tenant:
    task: Task
    node: int
    devices: tuple[int, ...]


@dataclass(slots=True)
class _Table:
    """Every running task's node and what it holds there, as rows."""

    devices: int
    tenants: list[_Tenant] = field(default_factory=list)
    _rows: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._rows = np.zeros((1024, 3 + self.devices), dtype=np.int64)

    def add(self, tenant: _Tenant) -> None:
        if len(self.tenants) == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self.tenants.append(tenant)
        self.set(len(self.tenants) - 1, tenant)

    def set(self, place: int, tenant: _Tenant) -> None:
        self.tenants[place] = tenant
        row = self._rows[place]
        row[:3] = tenant.node, tenant.task.cpu, tenant.task.memory
        row[3:] = 0
        row[[3 + device for device in tenant.devices]] = tenant.task.milli

    def in_the_way(self, idle: Idle, task: Task) -> Ints:
        """The tenants whose place the task would fit, were any one of them gone."""
        rows = self._rows[: len(self.tenants)]
        node = rows[:, 0]
        room = (idle.cpu[node] + rows[:, 1] >= task.cpu) & (idle.memory[node] + rows[:, 2] >= task.memory)
        room &= idle.accepts(task)[idle.kind[node]]
        able = np.flatnonzero(room)
        enough = (idle.gpus[node[able]] + rows[able, 3:] >= task.milli).sum(axis=1) >= task.gpus
        return np.asarray(able[enough], dtype=np.int64)


@dataclass(slots=True)
class MovingScores(Scores):
    """At most `budget` moves in all; `moves` were made. Nothing moves for a task without GPUs."""

    budget: int = 0
    moves: int = 0
    _table: _Table = field(init=False)

    def __post_init__(self) -> None:
        self._table = _Table(self.idle.gpus.shape[1])

    def place(self, task: Task, among: Mask | None = None) -> tuple[int, tuple[int, ...]] | None:
        """As without moves where it fits; else where one task can make room that fits elsewhere."""
        found = Scores.place(self, task, among)
        if found is None and among is None and task.gpus and self.moves < self.budget:
            found = self._moving(task)
        if found is not None:
            self._table.add(_Tenant(task, *found))
        return found

    def _moving(self, task: Task) -> tuple[int, tuple[int, ...]] | None:
        place = self._movable(self._table.in_the_way(self.idle, task), task)
        if place is None:
            return None
        tenant = self._table.tenants[place]
        self.idle.give(tenant.node, tenant.task, tenant.devices)
        devices = self.devices(task, tenant.node)
        self.idle.take(tenant.node, task, devices)
        elsewhere = Scores.place(self, tenant.task)
        if elsewhere is None:
            raise PolicyError(f"{tenant.task} has no other place, though there was one")
        self._table.set(place, _Tenant(tenant.task, *elsewhere))
        self.moves += 1
        return tenant.node, devices

    def _movable(self, places: Sequence[int] | Ints, task: Task) -> int | None:
        """The tenant with the least GPU that fits on another node as well, and less than the task needs."""
        smallest = sorted((self._table.tenants[int(place)].task.demand, int(place)) for place in places)
        for demand, place in smallest:
            tenant = self._table.tenants[place]
            if demand >= task.demand:
                return None
            row = self.row(tenant.task)
            fits = row > -np.inf
            if fits.sum() - fits[tenant.node] > 0:
                return place
        return None
