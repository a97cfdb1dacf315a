"""Estimates of rates that were not measured.

Matrix completion of pair rates (Gavel: Narayanan et al., OSDI 2020, section 3.3); linear scaling of data-parallel jobs
(Tesserae, section 4.3); noise on profiles (section 7.2); parallelism strategies (section 4.2, figure 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.knowledge.speed import Scaling

_MAX_ITERATIONS: Final = 500
_TOLERANCE: Final = 1e-5
_SHRINKAGE: Final = 0.05
"""Each singular value is reduced by this fraction of the largest one."""


def complete_matrix(table: Floats) -> Floats:
    """Returns the table with its NaN entries filled by low-rank completion; at least one entry must be a number.

    Soft-Impute (Mazumder, Hastie and Tibshirani, JMLR 2010, algorithm 1): missing entries repeatedly take the values
    of the singular value decomposition with reduced singular values, until they converge.
    """
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
    """Returns the linear scaling of a data-parallel model from its `rate` on one GPU (Tesserae, section 4.3).

    Pairs keep on N GPUs the fractions of their rates (`beside`) that they have on one. Real models scale less well, so
    measured rates take precedence.
    """
    return Scaling((1,), (rate,), beside=dict(beside))


def add_noise(rates: Floats, noise: float, random: np.random.Generator) -> Floats:
    """Returns each rate times a uniform random factor from 1 - noise to 1 + noise, with `noise` from 0 to 1."""
    return np.asarray(rates * random.uniform(1 - noise, 1 + noise, rates.shape), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ParallelStrategy:
    """Degrees of data and tensor parallelism, and the layers of each pipeline stage (Tesserae, section 4.2, figure 8).

    The job has `data` x `tensor` x `len(layers)` GPUs.
    """

    data: int
    tensor: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"dp{self.data}-tp{self.tensor}-pp{'.'.join(map(str, self.layers))}"

    @property
    def features(self) -> tuple[float, float, float, float, float]:
        """The features for estimates: log2 of the three degrees, and by which fraction the first and the last stage
        have more layers than the mean."""
        stages = len(self.layers)
        even = sum(self.layers) / stages
        return (log2(self.data), log2(self.tensor), log2(stages), self.layers[0] / even - 1, self.layers[-1] / even - 1)


def parallel_strategies(gpus: int, layers: int, shift: int = 2) -> tuple[ParallelStrategy, ...]:
    """Returns every strategy for `layers` layers on `gpus` GPUs.

    Pipelines are split evenly, or with up to `shift` layers moved between the first stage and the last one.
    """
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
