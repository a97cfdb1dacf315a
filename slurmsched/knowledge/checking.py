"""Optimistic profiling held against matrices that were measured in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.knowledge.knowledge import Knowledge
from slurmsched.knowledge.profiling import profiled
from slurmsched.knowledge.sensitivity import SensitivityMatrix

__all__ = ["Checked", "checked"]

CPUS: Final = 24
SIZES: Final = 10
"""The paper's server: 24 CPUs, 500 GB in steps of 50 GB."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One model: runs, of how many combinations, and how far the estimated speeds are from the measured ones, as parts
    of these: in the mean over the measured points and at most."""

    model: str
    runs: int
    combinations: int
    mean_error: float
    max_error: float


def checked(knowledge: Knowledge) -> Mapping[str, Checked]:
    """Each model whose matrix knows memory, profiled as if its matrix were the cluster: on 24 CPUs by 10 sizes of
    memory; errors are those at the matrix's own points."""
    found: dict[str, Checked] = {}
    for name, profile in knowledge.models.items():
        matrix = profile.matrix("")
        if matrix is not None and matrix.knows_memory:
            found[name] = _checked(name, matrix)
    return found


def _checked(name: str, matrix: SensitivityMatrix) -> Checked:
    cpus = tuple(float(count) for count in range(1, CPUS + 1))
    grid = sorted({*matrix.memory[:2], *np.linspace(matrix.memory[1], matrix.memory[-1], SIZES - 1)[1:]})
    fine = profiled(matrix.at, cpus, tuple(float(size) for size in grid))
    real = np.array(matrix.speed)
    guess = np.array([[fine.matrix.at(count, size) for size in matrix.memory] for count in matrix.cpus])
    errors = np.abs(guess - real) / real
    return Checked(name, len(fine.runs), fine.combinations, float(errors.mean()), float(errors.max()))
