"""How many CPUs and how much memory go with the GPUs (Synergy, sections 2, 4.1.3 and 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Protocol

from slurmsched.policies.cluster.gang import Gang
from slurmsched.policies.cluster.pools import PoolKind


@dataclass(frozen=True, slots=True)
class PerTaskResources:
    """CPUs and MiB for each part of a gang. CPUs are a multiple of the part's tasks."""

    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class DemandRange:
    """What a gang wants on nodes of one kind, and the least it accepts there."""

    best: PerTaskResources
    minimum: PerTaskResources


SizeUpgrade = tuple[PerTaskResources, float]
"""A larger portion, and how much faster than now it is, as a multiple of the speed at the proportional share."""


class Sizing(Protocol):
    """How CPUs and memory follow GPUs."""

    @property
    def name(self) -> str:
        """As people choose it: `tune`."""

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        """What the gang wants and the least it takes on nodes of this kind."""

    def upgrades(
        self, gang: Gang, kind: PoolKind, current: PerTaskResources, limit: PerTaskResources
    ) -> Iterator[SizeUpgrade]:
        """Portions above `have` and up to `most` that would make the gang faster; none where more is of no use."""


def proportional_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """The GPU-proportional share of each part, whole CPUs for each task, rounded down but never below one a task."""
    cpus = kind.cpus * gang.gpus_per_part // kind.gpus
    return PerTaskResources(
        max(cpus // gang.tasks_per_part, 1) * gang.tasks_per_part, kind.memory * gang.gpus_per_part // kind.gpus
    )


def requested_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """What the owner asked for; where nothing was said of memory, or it may shrink, no more than the share of it."""
    cpus = -(-gang.request.cpus // gang.parts)
    share, asked = proportional_size(gang, kind).memory, -(-gang.request.memory * gang.min_nodes // gang.parts)
    memory = min(asked, share) if asked else share
    return PerTaskResources(
        -(-cpus // gang.tasks_per_part) * gang.tasks_per_part, 0 if gang.memory_per_node else memory
    )


def memory_on_node(gang: Gang, per_task: PerTaskResources, parts: int) -> int:
    """MiB a node gives when it holds at most so many parts: Slurm knows one amount for all nodes of a job."""
    return max(gang.memory_per_node, per_task.memory * parts)


@dataclass(frozen=True, slots=True)
class AsRequested:
    """CPUs and memory as submitted, nothing else."""

    name: str = "as requested"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        per_task = requested_size(gang, kind)
        return DemandRange(per_task, per_task)

    def upgrades(
        self,
        gang: Gang,  # noqa: ARG002 as the protocol has it
        kind: PoolKind,  # noqa: ARG002
        current: PerTaskResources,  # noqa: ARG002
        limit: PerTaskResources,  # noqa: ARG002
    ) -> Iterator[SizeUpgrade]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Proportional:
    """CPUs and memory by the number of GPUs; memory never below what the owner asked."""

    name: str = "proportional"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        per_task = proportional_size(gang, kind)
        return DemandRange(per_task, per_task)

    def upgrades(
        self,
        gang: Gang,  # noqa: ARG002 as the protocol has it
        kind: PoolKind,  # noqa: ARG002
        current: PerTaskResources,  # noqa: ARG002
        limit: PerTaskResources,  # noqa: ARG002
    ) -> Iterator[SizeUpgrade]:
        return iter(())


_MIN_GAIN: Final = 1e-6
"""Gains below this are rounding."""


@dataclass(frozen=True, slots=True)
class Tune:
    """A job with a profile wants its best-case demand and takes what is as fast as its GPU-proportional share.

    A job without one gets what its owner asked for: nothing is known, so nothing is taken and nothing added.
    """

    name: str = "tune"

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
        fewest, (cap, memory) = current.cpus / gang.gpus_per_part, _per_gpu(gang, limit)
        for cpus in (fewest, *(point for point in matrix.cpus if fewest < point < cap), cap):
            reached = matrix.speed_at(cpus, memory)
            if reached > now * (1 + _MIN_GAIN):
                step = _rounded_size(gang, matrix.minimum_for_speed(reached, cpus, memory), limit)
                enough = max(step.memory, current.memory) if matrix.knows_memory else current.memory
                yield PerTaskResources(max(step.cpus, current.cpus), enough), (reached - now) / share


def _exclusive_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """What each part could have if the gang had its nodes to itself."""
    crowd = max(1, min(gang.max_parts_per_node, kind.gpus // gang.gpus_per_part))
    return PerTaskResources(kind.cpus // crowd // gang.tasks_per_part * gang.tasks_per_part, kind.memory // crowd)


def _per_gpu(gang: Gang, per_task: PerTaskResources) -> tuple[float, float]:
    return per_task.cpus / gang.gpus_per_part, per_task.memory / gang.gpus_per_part


def _rounded_size(gang: Gang, per_gpu: tuple[float, float], most: PerTaskResources) -> PerTaskResources:
    """So many CPUs and so much memory per GPU for a whole part: CPUs rounded up to its tasks, neither above `most`."""
    cpus, memory = (round(amount * gang.gpus_per_part, 6) for amount in per_gpu)
    return PerTaskResources(
        min(ceil(cpus / gang.tasks_per_part) * gang.tasks_per_part, most.cpus), min(ceil(memory), most.memory)
    )


@dataclass(frozen=True, slots=True)
class Greedy:
    """A job waits until all that makes it fastest is free on its nodes, though its GPUs were free before."""

    name: str = "greedy"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        best = Tune().demand_range(gang, kind).best
        return DemandRange(best, best)

    def upgrades(
        self,
        gang: Gang,  # noqa: ARG002 as the protocol has it
        kind: PoolKind,  # noqa: ARG002
        current: PerTaskResources,  # noqa: ARG002
        limit: PerTaskResources,  # noqa: ARG002
    ) -> Iterator[SizeUpgrade]:
        return iter(())
