"""How fast a model is on a node where it never ran: equation 10, and what was measured since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt

__all__ = ["Machine", "Model", "Throughputs", "estimate", "learned_unit"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's GPU: `tflops`, `memory` in GB, and `pcie`, what its PCIe version makes of the speed, at best 1.0."""

    tflops: float
    memory: float
    pcie: float = 1.0

    @property
    def index(self) -> float:
        """The Performance-Memory Index: teraflops per second over the square root of the memory."""
        return self.tflops / sqrt(self.memory)


@dataclass(frozen=True, slots=True)
class Model:
    """Weight and data set on scales of 1 (small) to 4 (extra large); `batch` is the mini-batch's size."""

    weight: float
    dataset: float
    batch: int


def estimate(model: Model, machine: Machine) -> float:
    """Throughput by equation 10. The unit is the same for all nodes and models, and nothing more is known of it."""
    return machine.index * model.batch * machine.pcie / (model.weight * model.dataset)


@dataclass(frozen=True, slots=True)
class Throughputs:
    """What is known of one model: estimates by node, in whatever unit, and steps per second where it was measured."""

    estimated: Mapping[str, float]
    measured: Mapping[str, float] = field(default_factory=dict)

    def refined(self, node: str, rate: float) -> Throughputs:
        """With what a node reported after a round; a round without a step says nothing."""
        return replace(self, measured={**self.measured, node: rate}) if rate > 0 else self

    def of(self, node: str, unit: float = 1.0) -> float:
        """Measured, else estimated and scaled as the estimates of measured nodes were wrong. `unit`: steps per second
        in one of the estimates', for a model of which nothing was measured."""
        if node in self.measured:
            return self.measured[node]
        return self.estimated.get(node, 0.0) * (_scale([self]) or unit)


def learned_unit(models: Iterable[Throughputs]) -> float | None:
    """Steps per second in one unit of the estimates, from all that was measured; None where nothing was."""
    return _scale(models)


def _scale(models: Iterable[Throughputs]) -> float | None:
    """The geometric mean of measured over estimated."""
    wrong = [
        log(rate / known.estimated[node])
        for known in models
        for node, rate in known.measured.items()
        if known.estimated.get(node, 0.0) > 0
    ]
    return exp(sum(wrong) / len(wrong)) if wrong else None
