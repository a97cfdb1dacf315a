"""Synergy on the Philly trace itself (section 5.3.1, figure 6): 8000 jobs in a row on 512 GPUs, three orders.

The paper does not say which 8000 jobs, nor their models. Each seed begins at another job of the public trace and draws
models by the split of the paper. Arrivals, GPUs and durations are the trace's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Mask
from slurmsched.experiments.experiment import Bound, ExperimentError, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.synergy.allocation import AUTHORS
from slurmsched.experiments.synergy.jobs import IterationJob, ReplayScenario, load_models
from slurmsched.experiments.synergy.replay import replay_trace
from slurmsched.traces.generators import DEFAULT_TASK_SPLIT, HOUR, SYNERGY_MODELS, draw_weighted, random_stream
from slurmsched.traces.tables import csv_rows, read_text

SERVER_COUNT: Final = 64
JOB_COUNT, QUICK_JOB_COUNT = 8000, 1500
ORDERS: Final = ("srtf", "las", "fifo")
MECHANISMS: Final = ("proportional", "tune")
PUBLISHED_MEAN_JCT: Final[Mapping[tuple[str, str], float]] = {
    ("srtf", "proportional"): 30.0, ("las", "proportional"): 32.0, ("fifo", "proportional"): 71.0,
    ("srtf", "tune"): 26.0, ("las", "tune"): 28.0, ("fifo", "tune"): 62.0,
}  # fmt: skip
"""Hours by order and mechanism (figure 6a)."""

PUBLISHED_SRTF_JCT: Final[Mapping[tuple[str, str], Mapping[str, float]]] = {
    ("short", "mean"): {"proportional": 2.0, "tune": 1.7},
    ("short", "99th percentile"): {"proportional": 9.0, "tune": 4.0},
    ("long", "mean"): {"proportional": 80.0, "tune": 68.0},
    ("long", "99th percentile"): {"proportional": 660.0, "tune": 641.0},
}
"""Hours under SRTF of short and long jobs (figure 6b)."""

_SHORT_HOURS: Final = 4.0
"""JCT under the proportional share below which a job is short."""
_MAX_GPUS: Final = 16
_NOTE: Final = (
    "Not held: the paper does not say which 8000 jobs of the trace, nor which models it gave them, and the load of the"
    " trace varies much: each seed is another part of it, and most parts do not fill 512 GPUs, so that orders hardly"
    " differ. Monitored is an eighth of the jobs, in the middle; jobs of more than 16 GPUs are left out. Short jobs are"
    " those that take less than 4 hours under the proportional share."
)
_GAIN_NOTE: Final = "Tune may not be worse than the proportional share in the mean of the seeds, whatever the part. "


@dataclass(frozen=True, slots=True)
class _PhillyRun:
    """One replay."""

    trace: Path
    profiles: Path
    seed: int
    order: str
    mechanism: str
    job_count: int


def run_synergy_philly(setup: ExperimentSetup) -> ExperimentResult:
    """Measures mean JCT by order and mechanism, and short and long jobs under SRTF; with `quick` of 1500 jobs.

    Raises ExperimentError, ProfileError, TraceError.
    """
    trace, profiles = setup.data_file("traces", "philly.csv"), setup.data_file("synergy", "profiles.json")
    count = QUICK_JOB_COUNT if setup.quick else JOB_COUNT
    configs = [
        _PhillyRun(trace, profiles, seed, order, mechanism, count)
        for order in ORDERS
        for mechanism in MECHANISMS
        for seed in setup.seeds
    ]
    runs = setup.run_all(_hours, configs, "replaying")
    jct = {
        (order, mechanism): [runs[_PhillyRun(trace, profiles, seed, order, mechanism, count)] for seed in setup.seeds]
        for order in ORDERS
        for mechanism in MECHANISMS
    }
    return ExperimentResult("synergy-philly", tuple(_rows(jct)))


def _hours(config: _PhillyRun) -> tuple[float, ...]:
    """Returns the JCT of each monitored job in hours."""
    middle, monitored = config.job_count // 2, config.job_count // 8
    run = replay_trace(
        trace_scenario(config.trace, config.profiles, config.seed, config.job_count),
        config.mechanism,
        config.order,
        AUTHORS,
        window=(middle, middle + monitored),
    )
    return tuple(job.jct / HOUR for job in run.measured_jobs)


def trace_scenario(trace: Path, profiles: Path, seed: int, count: int) -> ReplayScenario:
    """Returns `count` jobs in a row of the Philly trace, the first drawn, on 64 servers. Raises ExperimentError,
    ProfileError, TraceError."""
    models, jobs = load_models(profiles), list[tuple[float, int, float]]()
    for row in csv_rows(read_text(trace), trace.name, ("timestamp", "duration", "num_gpus")):
        try:
            arrival = datetime.fromisoformat(row.text("timestamp")).timestamp()
        except ValueError:
            raise row.error("timestamp", "a time as in 2017-10-09 07:01:55") from None
        gpus, seconds = row.integer("num_gpus"), row.number("duration")
        if 0 < gpus <= _MAX_GPUS and seconds > 0:
            jobs.append((arrival, gpus, seconds))
    if len(jobs) < count:
        raise ExperimentError(f"{trace}: expected at least {count} jobs of 1 to {_MAX_GPUS} GPUs")
    first = int(random_stream(seed, "first").integers(len(jobs) - count + 1))
    chosen = sorted(jobs)[first : first + count]
    split = dict(zip(SYNERGY_MODELS.values(), DEFAULT_TASK_SPLIT, strict=True))
    tasks = draw_weighted(split, count, random_stream(seed, "tasks"))
    spins = random_stream(seed, "models").random(count).tolist()
    drawn = [models[of_task[int(spin * len(of_task))]] for of_task, spin in zip(tasks, spins, strict=True)]
    return ReplayScenario(
        [
            IterationJob(number, arrival - chosen[0][0], max(1, round(seconds / model.iteration_seconds)), gpus, model)
            for number, ((arrival, gpus, seconds), model) in enumerate(zip(chosen, drawn, strict=True))
        ],
        SERVER_COUNT,
    )


def _rows(jct: Mapping[tuple[str, str], list[tuple[float, ...]]]) -> Iterator[FigureRow]:
    """Compares means over the seeds, in each of which jobs are alike under both mechanisms."""
    for order in ORDERS:
        means = {mechanism: fmean(fmean(hours) for hours in jct[order, mechanism]) for mechanism in MECHANISMS}
        for mechanism, mean in means.items():
            published = PUBLISHED_MEAN_JCT[order, mechanism]
            metric = f"{order} {mechanism} mean JCT"
            yield FigureRow(metric, "h", mean, published, bound=Bound.INFORMATIVE, note=_NOTE)
        gain = means["proportional"] / means["tune"]
        published = PUBLISHED_MEAN_JCT[order, "proportional"] / PUBLISHED_MEAN_JCT[order, "tune"]
        yield FigureRow(f"{order} gain in mean JCT", "x", gain, published, bound=Bound.INFORMATIVE, note=_NOTE)
        metric = f"{order} gain in mean JCT, at least none lost"
        yield FigureRow(metric, "x", gain, bound=Bound.AT_LEAST, note=_GAIN_NOTE, limit=1.0)
    for (size, figure), by_mechanism in PUBLISHED_SRTF_JCT.items():
        for mechanism, published in by_mechanism.items():
            measured = fmean(
                _figure_of(np.array(hours), np.array(fair) < _SHORT_HOURS, size, figure)
                for hours, fair in zip(jct["srtf", mechanism], jct["srtf", "proportional"], strict=True)
            )
            metric = f"srtf {mechanism}, {size} jobs: {figure} JCT"
            yield FigureRow(metric, "h", measured, published, bound=Bound.INFORMATIVE, note=_NOTE)
    speedups = [
        max(fair / ours for fair, ours in zip(*of_seed, strict=True))
        for of_seed in zip(jct["srtf", "proportional"], jct["srtf", "tune"], strict=True)
    ]
    metric = "srtf: largest gain of a job"
    yield FigureRow(metric, "x", fmean(speedups), 9.0, bound=Bound.INFORMATIVE, note=_NOTE)


def _figure_of(hours: Floats, short: Mask, size: str, figure: str) -> float:
    chosen = hours[short if size == "short" else ~short]
    if not len(chosen):
        return float("nan")
    return float(chosen.mean() if figure == "mean" else np.percentile(chosen, 99))
