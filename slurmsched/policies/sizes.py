"""Sizing: how many CPUs and how much memory a job gets with its GPUs.

Source: Mohan et al. (Synergy, OSDI 2022), sections 2, 4.1.3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Protocol

from slurmsched.policies.cluster.gang import Gang
from slurmsched.policies.cluster.resources import PoolKind


@dataclass(frozen=True, slots=True)
class PerTaskResources:
    """CPUs and MiB for each part of a gang. CPUs are a multiple of the tasks of a part."""

    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class DemandRange:
    """What each part of a gang should have on nodes of one kind, and the least it accepts there."""

    best: PerTaskResources
    minimum: PerTaskResources


SizeUpgrade = tuple[PerTaskResources, float]
"""More resources per part, and the speed they add, as a multiple of the speed at the proportional share."""


class Sizing(Protocol):
    """Sizes a gang's CPUs and memory."""

    @property
    def name(self) -> str:
        """A short name: `tune`."""

    @property
    def by_sensitivity(self) -> bool:
        """Whether a job with a profile gets what its sensitivity says."""

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        """Return what the gang should have, and the least it accepts, on nodes of this kind."""

    def upgrades(
        self, gang: Gang, kind: PoolKind, current: PerTaskResources, limit: PerTaskResources
    ) -> Iterator[SizeUpgrade]:
        """Yield sizes above `current` and up to `limit` that make the gang faster; none where more has no effect."""


def proportional_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """Return the GPU-proportional share of each part: whole CPUs per task, rounded down, at least 1 per task."""
    cpus = kind.cpus * gang.gpus_per_part // kind.gpus
    return PerTaskResources(
        max(cpus // gang.tasks_per_part, 1) * gang.tasks_per_part, kind.memory * gang.gpus_per_part // kind.gpus
    )


def requested_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """Return what the job requested, with memory no larger than the proportional share, which is also the default.

    The memory of a job that does not let it be tuned is in `Gang.memory_per_node`, so it is 0 here.
    """
    cpus = -(-gang.request.cpus // gang.parts)
    share, asked = proportional_size(gang, kind).memory, -(-gang.request.memory * gang.min_nodes // gang.parts)
    memory = min(asked, share) if asked else share
    return PerTaskResources(
        -(-cpus // gang.tasks_per_part) * gang.tasks_per_part, 0 if gang.memory_per_node else memory
    )


def demand_range(sizing: Sizing, gang: Gang, kind: PoolKind) -> DemandRange:
    """Return the gang's demand range on nodes of this kind. Jobs without whole GPUs get the CPUs that they ask for."""
    if gang.gpus_per_part:
        nothing = PerTaskResources(0, 0)
        return sizing.demand_range(gang, kind) if kind.gpus else DemandRange(nothing, nothing)
    cpus = -(-gang.request.cpus // gang.parts // gang.tasks_per_part) * gang.tasks_per_part
    asked = PerTaskResources(max(cpus, gang.tasks_per_part), 0)
    return DemandRange(asked, asked)


def memory_on_node(gang: Gang, per_task: PerTaskResources, parts: int) -> int:
    """Return the MiB on each node, where none has more than `parts`: Slurm has one amount for all nodes."""
    return max(gang.memory_per_node, per_task.memory * parts)


class _NoUpgrades:
    """Sizings whose best is their minimum: a job has nothing to gain from spare resources."""

    __slots__ = ()
    by_sensitivity = False

    def upgrades(
        self,
        gang: Gang,  # noqa: ARG002 as the protocol has it
        kind: PoolKind,  # noqa: ARG002
        current: PerTaskResources,  # noqa: ARG002
        limit: PerTaskResources,  # noqa: ARG002
    ) -> Iterator[SizeUpgrade]:
        return iter(())


@dataclass(frozen=True, slots=True)
class AsRequested(_NoUpgrades):
    """CPUs and memory as requested. A job that requests no memory gets its proportional share; or, unless
    `shares_memory`, what Slurm gives it, which is not counted."""

    shares_memory: bool = True
    name: str = "as requested"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        per_task = requested_size(gang, kind)
        if not self.shares_memory and not gang.request.memory:
            per_task = replace(per_task, memory=0)
        return DemandRange(per_task, per_task)


@dataclass(frozen=True, slots=True)
class Proportional(_NoUpgrades):
    """CPUs and memory in proportion to GPUs; memory is never below the request, unless the job lets it be tuned."""

    name: str = "proportional"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        per_task = proportional_size(gang, kind)
        return DemandRange(per_task, per_task)


_MIN_GAIN: Final = 1e-6
"""Gains below this, as a part of the speed, are rounding errors."""


@dataclass(frozen=True, slots=True)
class Tune:
    """Synergy-Tune's sizes (section 4.2): a job with a profile should have its best-case demand, and accepts what is
    as fast as its GPU-proportional share. A job without a profile gets what it requested."""

    name: str = "tune"
    by_sensitivity: bool = True

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        matrix = gang.profile and gang.profile.matrix(kind.gpu_type)
        asked = requested_size(gang, kind)
        if not matrix:
            return DemandRange(asked, asked)
        share, node = proportional_size(gang, kind), _exclusive_size(gang, kind)
        floor = _rounded_size(gang, matrix.minimum_for_share(*_per_gpu(gang, share)), share)
        demand = _rounded_size(gang, matrix.best_case_demand(*_per_gpu(gang, node)), node)
        best = PerTaskResources(max(demand.cpus, floor.cpus), max(demand.memory, floor.memory))
        if matrix.knows_memory:
            return DemandRange(best, floor)
        return DemandRange(replace(best, memory=asked.memory), replace(floor, memory=asked.memory))

    def upgrades(
        self, gang: Gang, kind: PoolKind, current: PerTaskResources, limit: PerTaskResources
    ) -> Iterator[SizeUpgrade]:
        matrix = gang.profile and gang.profile.matrix(kind.gpu_type)
        if not matrix:
            return
        now, share = (
            matrix.speed_at(*_per_gpu(gang, current)),
            matrix.speed_at(*_per_gpu(gang, proportional_size(gang, kind))),
        )
        fewest, (most, memory) = current.cpus / gang.gpus_per_part, _per_gpu(gang, limit)
        for cpus in (fewest, *(point for point in matrix.cpus if fewest < point < most), most):
            speed = matrix.speed_at(cpus, memory)
            if speed > now * (1 + _MIN_GAIN):
                step = _rounded_size(gang, matrix.minimum_for_speed(speed, cpus, memory), limit)
                enough = max(step.memory, current.memory) if matrix.knows_memory else current.memory
                yield PerTaskResources(max(step.cpus, current.cpus), enough), (speed - now) / share


@dataclass(frozen=True, slots=True)
class Greedy(_NoUpgrades):
    """Synergy-Greedy, a baseline of the paper: a job gets its best-case demand, and waits until all of it is free."""

    name: str = "greedy"
    by_sensitivity: bool = True

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        best = Tune().demand_range(gang, kind).best
        return DemandRange(best, best)


def _exclusive_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """Return what each part has if the gang has its nodes to itself."""
    parts = max(1, min(gang.max_parts_per_node, kind.gpus // gang.gpus_per_part))
    return PerTaskResources(kind.cpus // parts // gang.tasks_per_part * gang.tasks_per_part, kind.memory // parts)


def _per_gpu(gang: Gang, per_task: PerTaskResources) -> tuple[float, float]:
    return per_task.cpus / gang.gpus_per_part, per_task.memory / gang.gpus_per_part


def _rounded_size(gang: Gang, per_gpu: tuple[float, float], most: PerTaskResources) -> PerTaskResources:
    """Return the size of a part from CPUs and MiB per GPU: CPUs rounded up to its tasks, neither above `most`."""
    cpus, memory = (round(amount * gang.gpus_per_part, 6) for amount in per_gpu)
    return PerTaskResources(
        min(ceil(cpus / gang.tasks_per_part) * gang.tasks_per_part, most.cpus), min(ceil(memory), most.memory)
    )
