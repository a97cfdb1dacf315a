"""How far jobs are from what was profiled of their model."""

from __future__ import annotations

from slurmsched.knowledge.knowledge import Profile
from slurmsched.model import Measured

__all__ = ["expected"]


def expected(profile: Profile, point: Measured) -> float | None:
    """Steps per second that the profile promises with this allocation; None where its unit is another, or where it does
    not know the GPU type."""
    scaling = profile.scaling.get(point.gpu_type)
    if profile.measured is None or scaling is None:
        return None
    rate, matrix = scaling.at(point.gpus, point.nodes), profile.matrix(point.gpu_type)
    if matrix is None:
        return rate
    return rate * matrix.at(point.cpus, point.memory) / matrix.at(point.fair_cpus, point.fair_memory)
