"""A table of pair rates with holes, filled as if few causes made it: Gavel's way and Quasar's (Gavel, section 3.3).

Soft-Impute (Mazumder, Hastie and Tibshirani, JMLR 2010, algorithm 1): the holes take what the table of smaller rank
has there, until nothing changes.

Data-parallel jobs of any width, from what one GPU does (Tesserae, section 4.3).

Twice the GPUs do twice the work, and two jobs that share N GPUs keep the same parts of their rates as on one. Real
models do less on many GPUs: what was measured of a width goes before this.

Profiles that are wrong (Tesserae, section 7.2).

How a job that is parallel in three ways can be divided over its GPUs (Tesserae, section 4.2, figure 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.knowledge.speed import Scaling

Floats = NDArray[np.float64]

_MAX_ITERATIONS: Final = 500
_TOLERANCE: Final = 1e-5
_SHRINKAGE: Final = 0.05
"""Part of the largest singular value that each of them is shrunk by."""


def complete_matrix(table: Floats) -> Floats:
    """The table with its holes, which are NaN, filled; what was measured stays. Not all of it may be NaN."""
    known = ~np.isnan(table)
    mean = float(table[known].mean())
    filled: Floats = np.where(known, table, mean)
    for _ in range(_MAX_ITERATIONS):
        left, values, right = np.linalg.svd(filled - mean, full_matrices=False)
        smaller = (left * np.maximum(values - _SHRINKAGE * values.max(), 0.0)) @ right + mean
        better: Floats = np.where(known, table, smaller)
        change = float(np.abs(better - filled).max())
        filled = better
        if change < _TOLERANCE:
            break
    return filled


def data_parallel_scaling(rate: float, beside: Mapping[str, float]) -> Scaling:
    """A model's scaling from its rate on one GPU, and from the parts of it that it keeps there beside others."""
    return Scaling((1,), (rate,), beside=dict(beside))


def add_noise(rates: Floats, noise: float, random: np.random.Generator) -> Floats:
    """Each rate times one drawn evenly from 1 - noise to 1 + noise; `noise` from 0 to 1. What is 0 stays 0."""
    return np.asarray(rates * random.uniform(1 - noise, 1 + noise, rates.shape), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ParallelStrategy:
    """Copies of the model (`data`), GPUs that share each layer (`tensor`), and the number of layers of each stage of
    the pipeline; GPUs are the product of the first two and the number of stages."""

    data: int
    tensor: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"dp{self.data}-tp{self.tensor}-pp{'.'.join(map(str, self.layers))}"

    @property
    def features(self) -> tuple[float, float, float, float, float]:
        """What estimates go by: the degrees as powers of two, and of the layers of an even stage the part that the
        first stage and the last one have more."""
        stages = len(self.layers)
        even = sum(self.layers) / stages
        return (log2(self.data), log2(self.tensor), log2(stages), self.layers[0] / even - 1, self.layers[-1] / even - 1)


def parallel_strategies(gpus: int, layers: int, shift: int = 2) -> tuple[ParallelStrategy, ...]:
    """Every division of so many layers over so many GPUs by three degrees; of pipelines the even one, and those whose
    first stage has up to `shift` layers more or fewer and the last one as many fewer or more."""
    return tuple(
        ParallelStrategy(data, tensor, split)
        for data in _divisors(gpus)
        for tensor in _divisors(gpus // data)
        for split in _layer_splits(gpus // data // tensor, layers, shift)
    )


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _layer_splits(stages: int, layers: int, shift: int) -> Iterator[tuple[int, ...]]:
    if stages > layers:
        return
    least, more = divmod(layers, stages)
    even = [least + (stage < more) for stage in range(stages)]
    for by in range(-shift, shift + 1) if stages > 1 else (0,):
        split = (even[0] + by, *even[1:-1], even[-1] - by) if stages > 1 else tuple(even)
        if min(split) > 0:
            yield split
