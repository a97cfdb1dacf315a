"""How fast jobs were, as they told us themselves."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One job's steps per second, `rate`, with one allocation of `gpus` GPUs of one type on so many nodes.

    `cpus` and `memory` (MiB) are per GPU; the fair ones are the GPU-proportional share of the same nodes. `at` is when
    it was last measured (unix seconds).
    """

    gpu_type: str
    gpus: int
    nodes: int
    cpus: float
    memory: float
    fair_cpus: float
    fair_memory: float
    rate: float
    at: float
