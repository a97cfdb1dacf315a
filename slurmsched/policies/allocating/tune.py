"""Allocation by sensitivity (Synergy-Tune, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from slurmsched.policies.allocating.portion import Portion, Step, Terms, proportional, requested
from slurmsched.policies.gang import Gang
from slurmsched.policies.pools import Kind

__all__ = ["Tune"]

_WORTH: Final = 1e-6
"""Gains below this are rounding."""


@dataclass(frozen=True, slots=True)
class Tune:
    """A job with a profile wants its best-case demand and takes what is as fast as its GPU-proportional share.

    A job without one gets what its owner asked for: nothing is known, so nothing is taken and nothing added.
    """

    name: str = "tune"

    def terms(self, gang: Gang, kind: Kind) -> Terms:
        matrix = gang.profile and gang.profile.matrix(kind.gpu_type)
        asked = requested(gang, kind)
        if not matrix:
            return Terms(asked, asked)
        share, node = proportional(gang, kind), _part_of_node(gang, kind)
        floor = _portion(gang, matrix.floor(*_per_gpu(gang, share)), share)
        demand = _portion(gang, matrix.demand(*_per_gpu(gang, node)), node)
        best = Portion(max(demand.cpus, floor.cpus), max(demand.memory, floor.memory))
        if matrix.knows_memory:
            return Terms(best, floor)
        return Terms(replace(best, memory=asked.memory), replace(floor, memory=asked.memory))

    def larger(self, gang: Gang, kind: Kind, have: Portion, most: Portion) -> Iterator[Step]:
        matrix = gang.profile and gang.profile.matrix(kind.gpu_type)
        if not matrix:
            return
        now, share = matrix.at(*_per_gpu(gang, have)), matrix.at(*_per_gpu(gang, proportional(gang, kind)))
        fewest, (cap, memory) = have.cpus / gang.gpus, _per_gpu(gang, most)
        for cpus in (fewest, *(point for point in matrix.cpus if fewest < point < cap), cap):
            reached = matrix.at(cpus, memory)
            if reached > now * (1 + _WORTH):
                step = _portion(gang, matrix.least(reached, cpus, memory), most)
                enough = max(step.memory, have.memory) if matrix.knows_memory else have.memory
                yield Portion(max(step.cpus, have.cpus), enough), (reached - now) / share


def _part_of_node(gang: Gang, kind: Kind) -> Portion:
    """What each part could have if the gang had its nodes to itself."""
    crowd = max(1, min(gang.crowded, kind.gpus // gang.gpus))
    return Portion(kind.cpus // crowd // gang.tasks * gang.tasks, kind.memory // crowd)


def _per_gpu(gang: Gang, portion: Portion) -> tuple[float, float]:
    return portion.cpus / gang.gpus, portion.memory / gang.gpus


def _portion(gang: Gang, per_gpu: tuple[float, float], most: Portion) -> Portion:
    """So many CPUs and so much memory per GPU for a whole part: CPUs rounded up to its tasks, neither above `most`."""
    cpus, memory = (round(amount * gang.gpus, 6) for amount in per_gpu)
    return Portion(min(ceil(cpus / gang.tasks) * gang.tasks, most.cpus), min(ceil(memory), most.memory))
