"""Estimates of rates that were not measured.

Rates by GPU type (Hadar: Sultana et al., 2025, equation 10), corrected by measurements; which types are the fastest.
Matrix completion of pair rates (Gavel: Narayanan et al., OSDI 2020, section 3.3); linear scaling of data-parallel jobs
(Tesserae, section 4.3); noise on profiles (section 7.2); parallelism strategies (section 4.2, figure 8). Bayesian
optimisation over strategies within a budget of profiling runs (section 4.3): after a few random ones always that with
the greatest expected improvement (Snoek, Larochelle and Adams, NIPS 2012, section 2.2), by scikit-learn's Gaussian
process with a squared-exponential kernel over standardised features, whose length scale is the most likely one.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, log, log2, pi, sqrt
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.knowledge.speed import Scaling
from slurmsched.model import SynschedError

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

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


_MAX_COMPLETED_MODELS: Final = 40
"""Most models on each side of a completed table, those with most known pairs first: the time of a round is bounded."""


@lru_cache(maxsize=16)
def complete_pairs(known: frozenset[tuple[str, str, float]]) -> Mapping[tuple[str, str], float]:
    """Returns what models keep of their rates beside others in the pairs that nobody measured, from those that are
    `known` (model, the other, fraction). A model of which fewer than two are known on its side tells too little."""
    ordered = sorted(known)
    counts = (Counter(model for model, _, _ in ordered), Counter(other for _, other, _ in ordered))
    row_of, column_of = (
        {model: at for at, (model, _) in enumerate(side.most_common(_MAX_COMPLETED_MODELS))} for side in counts
    )
    table = np.full((len(row_of), len(column_of)), np.nan)
    for model, other, fraction in ordered:
        if model in row_of and other in column_of:
            table[row_of[model], column_of[other]] = fraction
    missing = np.isnan(table)
    if missing.all() or not missing.any():
        return {}
    completed, by_row, by_column = complete_matrix(table).clip(0.0, 1.0), (~missing).sum(axis=1), (~missing).sum(axis=0)
    return {
        (model, other): float(completed[row, column])
        for model, row in row_of.items()
        for other, column in column_of.items()
        if missing[row, column] and by_row[row] > 1 and by_column[column] > 1
    }


def data_parallel_scaling(rate: float, beside: Mapping[str, float]) -> Scaling:
    """Returns the linear scaling of a data-parallel model from its `rate` on one GPU (Tesserae, section 4.3).

    Pairs keep on N GPUs the fractions of their rates (`beside`) that they have on one. Real models scale less well, so
    measured rates take precedence.
    """
    return Scaling((1,), (rate,), beside=dict(beside))


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
        log(rate) - log(throughput.estimated[node])
        for throughput in models
        for node, rate in throughput.measured.items()
        if throughput.estimated.get(node, 0.0) > 0
    ]
    return exp(sum(logs) / len(logs)) if logs else None


GPU_SPECS: Final[Mapping[str, GpuSpec]] = {
    "k80": GpuSpec(4.1, 12),
    "m60": GpuSpec(4.8, 8),
    "p4": GpuSpec(5.5, 8),
    "p40": GpuSpec(11.8, 24),
    "p100": GpuSpec(9.3, 16),
    "v100": GpuSpec(15.7, 16),
    "t4": GpuSpec(8.1, 16),
    "t400": GpuSpec(1.1, 4),
    "1080-ti": GpuSpec(11.3, 11),
    "2080-ti": GpuSpec(13.4, 11),
    "titan-rtx": GpuSpec(16.3, 24),
    "3090": GpuSpec(35.6, 24),
    "4090": GpuSpec(82.6, 24),
    "a2000": GpuSpec(8.0, 6),
    "a6000": GpuSpec(77.4, 48),
    "a10": GpuSpec(62.5, 24),
    "a30": GpuSpec(82.0, 24),
    "a40": GpuSpec(74.8, 48),
    "a100": GpuSpec(156.0, 40),
    "l4": GpuSpec(60.0, 24),
    "l40": GpuSpec(90.5, 48),
    "l40s": GpuSpec(183.0, 48),
    "h100": GpuSpec(494.0, 80),
    "h200": GpuSpec(494.0, 141),
}
"""By GPU type: teraflops in single precision, on tensor cores where they support it, and memory in GB, both from the
manufacturers; for a K80 one of its two GPUs. The PCIe version is not known."""

_SLICE: Final = re.compile(r"\d+g\.\d+gb")
"""The profile of a MIG slice, as in `a100_1g.5gb`."""
_WORD_BOUNDARY: Final = re.compile(r"[^a-z0-9]+|(?<=[rg]tx)(?=[0-9a])")


@lru_cache(maxsize=1024)
def gpu_spec(gpu_type: str) -> GpuSpec | None:
    """Returns the data sheet of a GPU type by its name in Slurm, also a longer one as NVML gives it
    (`nvidia_a100-sxm4-40gb`, `geforce_rtx_3090`); None for an unknown one and for a slice of a GPU."""
    name = gpu_type.lower()
    words = [] if _SLICE.search(name) else _WORD_BOUNDARY.split(name)
    parts = {"".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)}
    found = [kind for kind in GPU_SPECS if kind.replace("-", "") in parts]
    return GPU_SPECS[max(found, key=len)] if found else None


_UNIT_MODEL: Final = ModelSpec(1, 1, 1)
"""Batch, weight and data set are the same for all copies of a job and cancel out."""


def estimates_by_type(types: Iterable[str]) -> Mapping[str, float]:
    """Returns a model's throughput by GPU type in one unit; an unknown type counts as the slowest known one."""
    specs = {kind: gpu_spec(kind) for kind in types}
    throughput = {kind: estimate_throughput(_UNIT_MODEL, spec) for kind, spec in specs.items() if spec is not None}
    slowest = min(throughput.values(), default=1.0)
    return {kind: throughput.get(kind, slowest) for kind in specs}


def type_speeds(profiled: Iterable[Mapping[str, Scaling]], types: Iterable[str]) -> Mapping[str, float]:
    """Returns the types, the fastest first, with the median over models of their relative rates; those of which no
    profile tells come last, with 0, among themselves by their data sheets."""
    scores = {gpu_type: list[float]() for gpu_type in types}
    for scaling in profiled:
        rates = {gpu_type: known.rate_at(1) for gpu_type, known in scaling.items()}
        best = max(rates.values(), default=0.0)
        for gpu_type in rates.keys() & scores.keys() if best else ():
            scores[gpu_type].append(rates[gpu_type] / best)
    medians = {gpu_type: median(rates) if rates else 0.0 for gpu_type, rates in scores.items()}
    sheets = estimates_by_type(medians)
    by_speed = sorted(medians, key=lambda gpu_type: (-medians[gpu_type], -sheets[gpu_type], gpu_type))
    return {gpu_type: medians[gpu_type] for gpu_type in by_speed}


def complete_rates(measured: Mapping[str, float], types: Iterable[str]) -> Mapping[str, float]:
    """Returns the rate of one model on each of `types`: as measured, else by equation 10, scaled to the measured rates.

    An estimate is never above the fastest measured rate. A type without a data sheet counts as the slowest measured
    one. Empty if no measured rate is above 0.
    """
    running = {kind: rate for kind, rate in measured.items() if rate > 0}
    if not running:
        return {}
    kinds = tuple(types)
    missing = [kind for kind in kinds if kind not in measured]
    if not missing:
        return {kind: measured[kind] for kind in kinds}
    slowest, fastest = min(running.values()), max(running.values())
    known = [kind for kind in (*running, *missing) if gpu_spec(kind) is not None]
    estimates = ThroughputEstimates(estimates_by_type(known), running)
    comparable = any(kind in running for kind in known)
    guesses = {kind: estimates.rate_on(kind) if comparable and kind in known else slowest for kind in missing}
    return {kind: measured[kind] if kind in measured else min(guesses[kind], fastest) for kind in kinds}


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


_LENGTH_SCALES: Final = (0.5, 4.0)
"""The least and the greatest length scale of the kernel, in standard deviations of the features."""
_NOISE_VARIANCE: Final = 1e-3
"""Variance of the measurement noise, relative to that of the values."""


class NoScikitLearnError(SynschedError):
    """scikit-learn is not installed; the message says how."""


MeasureRate = Callable[[int], float]
"""A profiling run of the candidate at an index: returns its rate, 0.0 if it does not fit into memory."""

_RANDOM_RUNS: Final = 4
"""Random runs before the first fit."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The `measured` rates by index of the candidate, in the order of the runs, and the `rates` of all candidates,
    measured or estimated."""

    measured: dict[int, float]
    rates: Floats

    @property
    def best(self) -> int:
        """The index of the fastest measured candidate."""
        return max(self.measured, key=lambda index: self.measured[index])


def bayesian_search(
    features: Sequence[Sequence[float]], measure: MeasureRate, budget: int, random: np.random.Generator
) -> SearchResult:
    """Measures up to `budget` candidates, at least one, chosen by expected improvement; `features` has their rows."""
    points = _standardised(np.array(features, dtype=np.float64))
    first = random.permutation(len(points))[: max(1, min(_RANDOM_RUNS, budget))]
    measured = {int(index): measure(int(index)) for index in first}
    while len(measured) < min(budget, len(points)):
        mean, spread = _predict(points, measured)
        gain = _expected_improvement(mean, spread, max(measured.values()))
        gain[list(measured)] = -1.0
        candidate = int(np.argmax(gain))
        measured[candidate] = measure(candidate)
    return SearchResult(measured, _estimated_rates(points, measured))


def random_search(
    features: Sequence[Sequence[float]], measure: MeasureRate, budget: int, random: np.random.Generator
) -> SearchResult:
    """The baseline: measures as many candidates, chosen at random, and estimates the others in the same way."""
    points = _standardised(np.array(features, dtype=np.float64))
    chosen = random.permutation(len(points))[: max(1, budget)]
    measured = {int(candidate): measure(int(candidate)) for candidate in chosen}
    return SearchResult(measured, _estimated_rates(points, measured))


def _standardised(points: Floats) -> Floats:
    deviation = points.std(axis=0)
    return np.asarray((points - points.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), dtype=np.float64)


def _predict(points: Floats, measured: dict[int, float]) -> tuple[Floats, Floats]:
    """Returns the mean and the standard deviation of the rate at each point, fitted to the measured ones."""
    process = _new_process()
    with warnings.catch_warnings(
        action="ignore"
    ):  # it warns of a length scale at its bounds, which is what they are for
        process.fit(points[list(measured)], np.array(list(measured.values())))
    mean, deviation = process.predict(points, return_std=True)
    return np.asarray(mean, dtype=np.float64), np.asarray(deviation, dtype=np.float64)


def _new_process() -> GaussianProcessRegressor:
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: PLC0415 an optional package
        from sklearn.gaussian_process.kernels import RBF  # noqa: PLC0415
    except ImportError:
        raise NoScikitLearnError(
            "searching parallelism strategies needs scikit-learn: pip install 'slurmsched[strategies]'"
        ) from None
    return GaussianProcessRegressor(RBF(1.0, _LENGTH_SCALES), alpha=_NOISE_VARIANCE, normalize_y=True)


def _estimated_rates(points: Floats, measured: dict[int, float]) -> Floats:
    rates = np.maximum(_predict(points, measured)[0], 0.0)
    rates[list(measured)] = list(measured.values())
    return rates


def _expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    from scipy.special import ndtr  # noqa: PLC0415 only this search needs it

    deviation = np.maximum(spread, 1e-12)
    above = (mean - best) / deviation
    density = np.exp(-(above**2) / 2) / sqrt(2 * pi)
    return np.asarray((mean - best) * ndtr(above) + deviation * density, dtype=np.float64)
