"""How fast a model is on a node where it never ran: equation 10, and what was measured since.

What equation 10 knows of GPU types, by the names that sites give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A node's GPU: `tflops`, `memory` in GB, and `pcie`, what its PCIe version makes of the speed, at best 1.0."""

    tflops: float
    memory: float
    pcie_scaling: float = 1.0

    @property
    def performance_memory_index(self) -> float:
        """The Performance-Memory Index: teraflops per second over the square root of the memory."""
        return self.tflops / sqrt(self.memory)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weight and data set on scales of 1 (small) to 4 (extra large); `batch` is the mini-batch's size."""

    weight: float
    dataset: float
    batch: int


def estimate_throughput(model: ModelSpec, gpu: GpuSpec) -> float:
    """Throughput by equation 10. The unit is the same for all nodes and models, and nothing more is known of it."""
    return gpu.performance_memory_index * model.batch * gpu.pcie_scaling / (model.weight * model.dataset)


@dataclass(frozen=True, slots=True)
class ThroughputEstimates:
    """What is known of one model: estimates by node, in whatever unit, and steps per second where it was measured."""

    estimated: Mapping[str, float]
    measured: Mapping[str, float] = field(default_factory=dict)

    def with_measurement(self, node: str, rate: float) -> ThroughputEstimates:
        """With what a node reported after a round; a round without a step says nothing."""
        return replace(self, measured={**self.measured, node: rate}) if rate > 0 else self

    def rate_on(self, node: str, scale: float = 1.0) -> float:
        """Measured, else estimated and scaled as the estimates of measured nodes were wrong. `unit`: steps per second
        in one of the estimates', for a model of which nothing was measured."""
        if node in self.measured:
            return self.measured[node]
        return self.estimated.get(node, 0.0) * (_mean_ratio([self]) or scale)


def learned_scale(models: Iterable[ThroughputEstimates]) -> float | None:
    """Steps per second in one unit of the estimates, from all that was measured; None where nothing was."""
    return _mean_ratio(models)


def _mean_ratio(models: Iterable[ThroughputEstimates]) -> float | None:
    """The geometric mean of measured over estimated."""
    wrong = [
        log(rate / throughput.estimated[node])
        for throughput in models
        for node, rate in throughput.measured.items()
        if throughput.estimated.get(node, 0.0) > 0
    ]
    return exp(sum(wrong) / len(wrong)) if wrong else None


GPU_SPECS: Final[Mapping[str, GpuSpec]] = {
    "k80": GpuSpec(4.1, 12),
    "p100": GpuSpec(9.3, 16),
    "v100": GpuSpec(15.7, 16),
    "t4": GpuSpec(8.1, 16),
    "titan-rtx": GpuSpec(16.3, 24),
    "rtx-3090": GpuSpec(35.6, 24),
    "a10": GpuSpec(62.5, 24),
    "a100": GpuSpec(156.0, 40),
    "l4": GpuSpec(60.0, 24),
    "l40s": GpuSpec(183.0, 48),
    "h100": GpuSpec(494.0, 80),
}
"""Single-precision teraflops and GB, as the makers state them, on tensor cores where these compute it; of a K80 one of
its two GPUs. The board's PCIe version is not known."""

_UNIT_MODEL: Final = ModelSpec(1, 1, 1)
"""Batch, weight and data set are the same for all copies of a job: they do not matter for its parts."""


def estimates_by_type(types: Iterable[str]) -> Mapping[str, float]:
    """A model's throughput by GPU type, in one unit. A type that is not known counts as the slowest of the others."""
    throughput = {
        kind: estimate_throughput(_UNIT_MODEL, GPU_SPECS[kind.lower()]) for kind in types if kind.lower() in GPU_SPECS
    }
    slowest = min(throughput.values(), default=1.0)
    return {kind: throughput.get(kind, slowest) for kind in types}
