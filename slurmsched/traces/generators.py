"""Generates workloads from published distributions.

The same seed gives the same trace. Arrivals, durations, models and widths have separate random streams, so that another
arrival rate does not change the durations.

- Gavel (Narayanan et al., OSDI 2020, section 7.1): Poisson arrivals, durations of 10^x minutes, 26 job types drawn
  uniformly.
- Hadar (section IV-A, table II): four classes of GPU-hours drawn uniformly, all jobs arrive at 0. Widths are those of
  the Philly trace, from which the paper takes its jobs.
- Shockwave (Zheng et al., NSDI 2023, section 8.1) as Tesserae uses it (section 6): Poisson arrivals, four classes of
  GPU-hours, widths of 1 to 8 GPUs. The paper gives no upper bound of the largest class; here it is 120 GPU-hours.
- Synergy (Mohan et al., OSDI 2022, section 5.1): Poisson arrivals, Gavel's durations, and a split over image, language
  and speech models. Jobs have one GPU, or the widths of the authors' simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from zlib import crc32

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.model.reasons import pluralise
from slurmsched.traces.trace import MAX_COPIES, Trace, TraceError, TraceJob

T = TypeVar("T")

PHILLY_WIDTHS: Final[Mapping[int, float]] = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
"""Probabilities of GPUs per job, from the Philly trace by way of Gavel (section 7.1) and Synergy's simulator."""

HOUR: Final = 3600.0
MINUTE: Final = 60.0


def random_stream(seed: int, concern: str) -> np.random.Generator:
    """Returns the random generator for one concern, such as `arrivals`."""
    return np.random.default_rng((seed, crc32(concern.encode())))


def poisson_arrivals(jobs: int, rate: float, random: np.random.Generator) -> Floats:
    """Returns the arrival times in seconds of a Poisson process with `rate` jobs per hour; the first one is 0."""
    gaps = random.exponential(HOUR / rate, jobs)
    gaps[:1] = 0.0
    return np.asarray(np.cumsum(gaps).round(3), dtype=np.float64)


def gavel_durations(jobs: int, random: np.random.Generator) -> Floats:
    """Returns durations in seconds: 10^x minutes, with x uniform in [1.5, 3] for 80 % of the jobs and in [3, 4] for the
    others (Gavel, section 7.1; Synergy, section 5.1)."""
    long = random.random(jobs) >= 0.8  # noqa: PLR2004  # the published figure
    exponent = np.where(long, random.uniform(3, 4, jobs), random.uniform(1.5, 3, jobs))
    return np.asarray((MINUTE * 10.0**exponent).round(3), dtype=np.float64)


def draw_weighted(weights: Mapping[T, float], jobs: int, random: np.random.Generator) -> Sequence[T]:
    """Returns a random key for each job, by their weights, which need not be normalised."""
    keys, probabilities = list(weights), np.array(list(weights.values()), dtype=float)
    return [keys[index] for index in random.choice(len(keys), jobs, p=probabilities / probabilities.sum())]


_GAVEL_BATCH_SIZES: Final = {
    "resnet-18": (16, 32, 64, 128, 256),
    "resnet-50": (16, 32, 64, 128),
    "transformer": (16, 32, 64, 128, 256),
    "lm": (5, 10, 20, 40, 80),
    "recommendation": (512, 1024, 2048, 4096, 8192),
}
GAVEL_MODELS: Final = (
    "a3c",
    "cyclegan",
    *(f"{model}-batch-size-{batch}" for model, batches in _GAVEL_BATCH_SIZES.items() for batch in batches),
)
"""Job types: models with batch sizes (Gavel, table 2)."""


def gavel_workload(jobs: int, seed: int, rate: float) -> Trace:
    """Returns `jobs` jobs that arrive at `rate` per hour."""
    arrivals = poisson_arrivals(jobs, rate, random_stream(seed, "arrivals"))
    durations = gavel_durations(jobs, random_stream(seed, "durations"))
    types = draw_weighted(dict.fromkeys(GAVEL_MODELS, 1.0), jobs, random_stream(seed, "models"))
    widths = draw_weighted(PHILLY_WIDTHS, jobs, random_stream(seed, "widths"))
    return Trace(
        name=f"gavel-{rate:g}",
        source=f"generated: Gavel, section 7.1, {rate:g} jobs/h, seed {seed}",
        jobs=tuple(
            TraceJob(id=str(number), arrival=float(arrival), gpus=width, duration=float(duration), model=model)
            for number, (arrival, duration, model, width) in enumerate(
                zip(arrivals, durations, types, widths, strict=True)
            )
        ),
    )


HADAR_SIZE_CLASSES: Final[Mapping[str, tuple[float, float, tuple[str, ...]]]] = {
    "S": (0, 1, ("resnet-18",)),
    "M": (1, 10, ("cyclegan",)),
    "L": (10, 50, ("lstm", "transformer")),
    "XL": (60, 100, ("resnet-50",)),
}
"""The lower and upper bound of GPU-hours and the models of each class (Hadar, table II)."""


def hadar_workload(jobs: int, seed: int) -> Trace:
    """Returns `jobs` jobs that all arrive at 0."""
    classes = draw_weighted(dict.fromkeys(HADAR_SIZE_CLASSES, 1.0), jobs, random_stream(seed, "sizes"))
    within = random_stream(seed, "durations").random(jobs)
    spins = random_stream(seed, "models").random(jobs)
    widths = draw_weighted(PHILLY_WIDTHS, jobs, random_stream(seed, "widths"))
    return Trace(
        name="hadar",
        source=f"generated: Hadar, section IV-A, seed {seed}",
        jobs=tuple(
            _hadar_job(number, *HADAR_SIZE_CLASSES[size], part=float(part), spin=float(spin), width=width)
            for number, (size, part, spin, width) in enumerate(zip(classes, within, spins, widths, strict=True))
        ),
    )


def _hadar_job(
    number: int, low: float, high: float, models: tuple[str, ...], *, part: float, spin: float, width: int
) -> TraceJob:
    seconds = max(1.0, HOUR * (low + (high - low) * part) / width)
    return TraceJob(
        id=str(number), arrival=0.0, gpus=width, duration=round(seconds, 3), model=models[int(spin * len(models))]
    )


SHOCKWAVE_SIZES: Final[Mapping[tuple[float, float], float]] = {
    (0.2, 8): 0.72,
    (8, 16): 0.20,
    (16, 72): 0.05,
    (72, 120): 0.03,
}
"""Probabilities of the classes small, medium, large and extra large, by their bounds in GPU-hours."""

SHOCKWAVE_WIDTHS: Final[Mapping[int, float]] = {1: 0.60, 2: 0.30, 4: 0.09, 8: 0.01}


def shockwave_workload(jobs: int, seed: int, rate: float = 80.0) -> Trace:
    """Returns `jobs` jobs that arrive at `rate` per hour."""
    arrivals = poisson_arrivals(jobs, rate, random_stream(seed, "arrivals"))
    sizes = draw_weighted(SHOCKWAVE_SIZES, jobs, random_stream(seed, "sizes"))
    within = random_stream(seed, "durations").random(jobs)
    widths = draw_weighted(SHOCKWAVE_WIDTHS, jobs, random_stream(seed, "widths"))
    types = draw_weighted(dict.fromkeys(GAVEL_MODELS, 1.0), jobs, random_stream(seed, "models"))
    return Trace(
        name=f"shockwave-{rate:g}",
        source=f"generated: Shockwave, section 8.1, {rate:g} jobs/h, seed {seed}",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=width,
                duration=round(HOUR * (low + (high - low) * float(part)) / width, 3),
                model=model,
            )
            for number, (arrival, (low, high), part, width, model) in enumerate(
                zip(arrivals, sizes, within, widths, types, strict=True)
            )
        ),
    )


TaskSplit = tuple[float, float, float]
"""Weights of image, language and speech jobs."""

SYNERGY_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": ("alexnet", "resnet18", "resnet50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
"""Models of each task (Synergy, table 4)."""

DEFAULT_TASK_SPLIT: Final[TaskSplit] = (20, 70, 10)


def synergy_workload(
    jobs: int, seed: int, rate: float, split: TaskSplit = DEFAULT_TASK_SPLIT, *, multi: bool = False
) -> Trace:
    """Returns `jobs` jobs that arrive at `rate` per hour; with `multi` some have up to 8 GPUs."""
    arrivals = poisson_arrivals(jobs, rate, random_stream(seed, "arrivals"))
    durations = gavel_durations(jobs, random_stream(seed, "durations"))
    tasks = draw_weighted(dict(zip(SYNERGY_MODELS, split, strict=True)), jobs, random_stream(seed, "tasks"))
    spins = random_stream(seed, "models").random(jobs)
    widths = draw_weighted(PHILLY_WIDTHS if multi else {1: 1.0}, jobs, random_stream(seed, "widths"))
    return Trace(
        name=f"synergy-{rate:g}",
        source=f"generated: Synergy, section 5.1, {rate:g} jobs/h, split {split}, seed {seed}",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=width,
                duration=float(duration),
                model=SYNERGY_MODELS[task][int(spin * len(SYNERGY_MODELS[task]))],
                task=task,
            )
            for number, (arrival, duration, task, spin, width) in enumerate(
                zip(arrivals, durations, tasks, spins, widths, strict=True)
            )
        ),
    )


GENERATORS: Final[Mapping[str, Callable[[int, int, float], Trace]]] = {
    "synergy": synergy_workload,
    "synergy-multi": lambda jobs, seed, rate: synergy_workload(jobs, seed, rate, multi=True),
    "gavel": gavel_workload,
    "shockwave": shockwave_workload,
    "hadar": lambda jobs, seed, _rate: hadar_workload(jobs, seed),
}
"""Generators by name; they take the number of jobs, the seed and the jobs per hour."""


def generate(name: str, jobs: int, seed: int, rate: float, fork: int = 0) -> Trace:
    """Returns `jobs` jobs of the named workload; `rate` is in jobs per hour. Raises TraceError.

    With `fork` above 1 its one-GPU jobs are forked into that many copies, as HadarE does with all jobs (Sultana et al.,
    2025, section V-A).
    """
    if name not in GENERATORS:
        raise TraceError(f"there is no generator '{name}': known are {', '.join(GENERATORS)}")
    if jobs < 1 or not 0 < rate < float("inf"):
        raise TraceError(
            f"{name}: expected at least 1 job and a rate above 0, not {pluralise(jobs, 'job')} at {rate:g} per hour"
        )
    if not 0 <= fork <= MAX_COPIES:
        raise TraceError(f"{name}: expected 0 to {MAX_COPIES} copies of a job, not {fork}")
    trace = GENERATORS[name](jobs, seed, rate)
    if fork <= 1:
        return trace
    copied = tuple(replace(job, fork=fork) if job.gpus == 1 else job for job in trace.jobs)
    return replace(trace, jobs=copied, source=f"{trace.source}, {fork} copies of one-GPU jobs")
