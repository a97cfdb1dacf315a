"""What the authors published: allocation and fragments of ten seeds, 42 to 51 (`expected.json`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from cattrs import BaseValidationError, Converter
from numpy.typing import NDArray

from slurmsched.experiments.experiment import ExperimentError

__all__ = ["CURVES", "Published", "Spread", "digest", "read_published"]

_HALF_A_DIGIT: Final = 0.005


@dataclass(frozen=True, slots=True)
class Spread:
    """Ten seeds, in per cent of all GPUs."""

    mean: float
    std: float
    min: float
    max: float

    @property
    def reach(self) -> float:
        """How far from the mean a seed lies at most, of the mean; the figures have two digits."""
        return (max(self.max - self.mean, self.mean - self.min) + _HALF_A_DIGIT) / self.mean

    @property
    def twice(self) -> float:
        """Two standard deviations, of the mean."""
        return 2 * self.std / self.mean


By = Mapping[str, Mapping[str, Mapping[str, Spread]]]


@dataclass(frozen=True, slots=True)
class Published:
    """By pod list, by the paper's name of the policy, by per cent of the GPUs asked for."""

    alloc_pct: By
    frag_amount_pct: By


def read_published(path: Path) -> Published:
    """Raises ExperimentError."""
    try:
        return Converter().structure(json.loads(path.read_text(encoding="utf-8")), Published)
    except (OSError, ValueError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected published allocations by policy: {error!r}") from error


def digest(curve: NDArray[np.float64]) -> str:
    """A curve's two-digit points as sixteen letters."""
    return hashlib.sha256(",".join(f"{point:.2f}" for point in curve).encode()).hexdigest()[:16]


CURVES: Final[Mapping[tuple[str, int], tuple[str, str]]] = {
    ("fgd", 42): ("b930f79cc592f291", "2526bcdff7610f0b"),
    ("fgd", 43): ("7835db767851018b", "2d7c1aa84766bda7"),
    ("fgd", 44): ("0ddfe9e5c8ea5ef7", "7a311a10a379e61f"),
    ("best_fit", 42): ("b1b137154b2d3960", "54b86ea19d600636"),
    ("best_fit", 43): ("4ce34edf59da6137", "ec332411fcddf119"),
    ("best_fit", 44): ("3a4b36aa6946ddbb", "452c5acaf90799a7"),
    ("gpu_packing", 42): ("733d9b097a54ca50", "661572305a1670df"),
    ("gpu_packing", 43): ("b2d500b0ecd7492f", "add8cdca6afe6303"),
    ("gpu_packing", 44): ("90e9a62e246f3eb7", "87366196ecbd3869"),
    ("clustering", 42): ("e04b04d0eee1df3b", "bc8a57ec24f24e37"),
    ("clustering", 43): ("73aea59b23393686", "9d3482324301079c"),
    ("clustering", 44): ("487bc1cd6e4cec6e", "7cb5ff6621053253"),
    ("dot_product", 42): ("235531880b8347ad", "d40a3ae15461cfdb"),
    ("dot_product", 43): ("a9bfd18c1b5769f4", "4862da2e5ea60b2c"),
    ("dot_product", 44): ("036ad4a27c7f9ac0", "e83b80fd94b571e5"),
}
"""Digests of the authors' own curves on `default`, allocation and amount of fragments, 131 points each, by policy and
seed: their tables are not ours to ship (kubernetes-scheduler-simulator, commit 8f3d641, analysis/expected_results)."""
