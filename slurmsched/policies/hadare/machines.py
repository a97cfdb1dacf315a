"""What equation 10 knows of GPU types, by the names that sites give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from slurmsched.policies.hadare.estimating import Machine, Model, estimate

__all__ = ["MACHINES", "estimates"]

MACHINES: Final[Mapping[str, Machine]] = {
    "k80": Machine(4.1, 12),
    "p100": Machine(9.3, 16),
    "v100": Machine(15.7, 16),
    "t4": Machine(8.1, 16),
    "titan-rtx": Machine(16.3, 24),
    "rtx-3090": Machine(35.6, 24),
    "a10": Machine(62.5, 24),
    "a100": Machine(156.0, 40),
    "l4": Machine(60.0, 24),
    "l40s": Machine(183.0, 48),
    "h100": Machine(494.0, 80),
}
"""Single-precision teraflops and GB, as the makers state them, on tensor cores where these compute it; of a K80 one of
its two GPUs. The board's PCIe version is not known."""

_ALL_ALIKE: Final = Model(1, 1, 1)
"""Batch, weight and data set are the same for all copies of a job: they do not matter for its parts."""


def estimates(types: Iterable[str]) -> Mapping[str, float]:
    """A model's throughput by GPU type, in one unit. A type that is not known counts as the slowest of the others."""
    known = {kind: estimate(_ALL_ALIKE, MACHINES[kind.lower()]) for kind in types if kind.lower() in MACHINES}
    slowest = min(known.values(), default=1.0)
    return {kind: known.get(kind, slowest) for kind in types}
