"""Data made up: a function drawn at random, seen through noise."""

from __future__ import annotations

from typing import Final

import numpy as np

from slurmsched.experiments.consolidation.network import INPUTS, Array

__all__ = ["Samples"]

BATCH: Final = 50
NOISE: Final = 0.3
HELD_OUT: Final = 4000

_UNITS: Final = 32
_BENT: Final = 1.5
"""How far from linear the function is: its weights are so much larger than a fresh network's."""


class Samples:
    """`count` samples that are met again and again, or with None new ones in every batch.

    `inputs` and `wanted` are never trained on, and without noise.
    """

    def __init__(self, seed: int, count: int | None) -> None:
        random = np.random.default_rng(seed)
        self._inner = random.uniform(-1, 1, (INPUTS, _UNITS)) * _BENT * INPUTS**-0.5
        self._bias = random.uniform(-1, 1, _UNITS) * _BENT * INPUTS**-0.5
        self._outer = random.uniform(-1, 1, (_UNITS, 1)) * _BENT * _UNITS**-0.5
        self.inputs = random.standard_normal((HELD_OUT, INPUTS))
        self.wanted = self._function(self.inputs)
        self._kept = self._drawn(count, random) if count is not None else None

    def batch(self, random: np.random.Generator) -> tuple[Array, Array]:
        """One batch to train on."""
        if self._kept is None:
            return self._drawn(BATCH, random)
        inputs, wanted = self._kept
        chosen = random.integers(len(inputs), size=BATCH)
        return inputs[chosen], wanted[chosen]

    def _drawn(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        inputs = random.standard_normal((count, INPUTS))
        return inputs, self._function(inputs) + NOISE * random.standard_normal((count, 1))

    def _function(self, inputs: Array) -> Array:
        hidden: Array = np.tanh(inputs @ self._inner + self._bias)
        given: Array = hidden @ self._outer
        return given
