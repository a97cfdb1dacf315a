"""Throughput of a model on nodes where it never ran (Sultana et al., 2025, equation 10), corrected by measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A node's GPU: teraflops, memory in GB, and the factor of its PCIe version, at most 1.0."""

    tflops: float
    memory: float
    pcie_scaling: float = 1.0

    @property
    def performance_memory_index(self) -> float:
        """The Performance-Memory Index: teraflops per second over the square root of the memory."""
        return self.tflops / sqrt(self.memory)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weight and data set on scales of 1 (small) to 4 (extra large), and the mini-batch size."""

    weight: float
    dataset: float
    batch: int


def estimate_throughput(model: ModelSpec, gpu: GpuSpec) -> float:
    """Returns the throughput by equation 10, in an unknown unit that is the same for all nodes and models."""
    return gpu.performance_memory_index * model.batch * gpu.pcie_scaling / (model.weight * model.dataset)


@dataclass(frozen=True, slots=True)
class ThroughputEstimates:
    """Rates of one model: estimates by node in any unit, and steps per second where it was measured."""

    estimated: Mapping[str, float]
    measured: Mapping[str, float] = field(default_factory=dict)

    def with_measurement(self, node: str, rate: float) -> ThroughputEstimates:
        """Returns the estimates with a node's measured rate; a rate of 0 is ignored."""
        return replace(self, measured={**self.measured, node: rate}) if rate > 0 else self

    def rate_on(self, node: str, scale: float = 1.0) -> float:
        """Returns the measured rate, else the estimate times the mean ratio of measured to estimated rates.

        `scale` is that ratio, in steps per second per unit of the estimates, for a model without measurements.
        """
        if node in self.measured:
            return self.measured[node]
        return self.estimated.get(node, 0.0) * (_mean_ratio([self]) or scale)


def learned_scale(models: Iterable[ThroughputEstimates]) -> float | None:
    """Returns the steps per second per unit of the estimates over all models; None without measurements."""
    return _mean_ratio(models)


def _mean_ratio(models: Iterable[ThroughputEstimates]) -> float | None:
    """Returns the geometric mean of measured over estimated rates; None without measurements."""
    logs = [
        log(rate / throughput.estimated[node])
        for throughput in models
        for node, rate in throughput.measured.items()
        if throughput.estimated.get(node, 0.0) > 0
    ]
    return exp(sum(logs) / len(logs)) if logs else None


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
"""By GPU type: teraflops in single precision, on tensor cores where they support it, and memory in GB, both from the
manufacturers; for a K80 one of its two GPUs. The PCIe version is not known."""

_UNIT_MODEL: Final = ModelSpec(1, 1, 1)
"""Batch, weight and data set are the same for all copies of a job and cancel out."""


def estimates_by_type(types: Iterable[str]) -> Mapping[str, float]:
    """Returns a model's throughput by GPU type in one unit; an unknown type counts as the slowest known one."""
    throughput = {
        kind: estimate_throughput(_UNIT_MODEL, GPU_SPECS[kind.lower()]) for kind in types if kind.lower() in GPU_SPECS
    }
    slowest = min(throughput.values(), default=1.0)
    return {kind: throughput.get(kind, slowest) for kind in types}
