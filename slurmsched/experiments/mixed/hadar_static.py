"""Hadar's trace-driven comparison (section IV, figures 3 and 4): 480 jobs of four sizes on 60 GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, ExperimentError, Outcome, Row, Task
from slurmsched.experiments.mixed.fastest import fastest
from slurmsched.experiments.mixed.figures import Replayed
from slurmsched.experiments.mixed.gavel import GavelRounds
from slurmsched.experiments.mixed.hadar import HadarRounds
from slurmsched.experiments.mixed.reading import SIXTY, TYPES
from slurmsched.experiments.mixed.replay import replay
from slurmsched.experiments.mixed.rounds import RoundPolicy
from slurmsched.experiments.mixed.tiresias import Tiresias
from slurmsched.experiments.mixed.work import Work
from slurmsched.experiments.mixed.yarn import YarnCapacity
from slurmsched.knowledge import Knowledge, load_gavel_rates
from slurmsched.policies.gavel import POLICIES
from slurmsched.policies.hadar import Hadar, timely
from slurmsched.traces.generating import hadar

__all__ = ["sized_work", "static"]

JOBS: Final = 480
QUICK: Final = 120
RESTART: Final = 10.0
HOUR: Final = 3600.0
HOURS_OF: Final = "k80"
"""The GPU whose hours the sizes count. The paper does not say. By K80 hours the work fits its 40 to 68 hours; by V100
hours it would take 340, with the same ratios."""

_MEASURED: Final[Mapping[str, str]] = {
    "resnet-18": "resnet-18-batch-size-128",
    "cyclegan": "cyclegan",
    "lstm": "lm-batch-size-80",
    "transformer": "transformer-batch-size-128",
    "resnet-50": "resnet-50-batch-size-64",
}
"""Table II's models as Gavel's authors measured them, in batches that run on all types at any width."""


@dataclass(frozen=True, slots=True)
class _Rival:
    """A scheduler; `total` and `median` are how much longer it takes than Hadar as published. `bound`: how the total is
    held against that."""

    make: Callable[[], RoundPolicy]
    total: float
    median: float | None = None
    bound: Bound = Bound.AT_LEAST


def _gavel() -> RoundPolicy:
    return GavelRounds("gavel", POLICIES["max_min_fairness_perf"], np.random.default_rng(0))


_OURS: Final[Mapping[str, Callable[[], RoundPolicy]]] = {
    "hadar": lambda: HadarRounds(Hadar(restart=RESTART, valuing=timely)),
    "hadar, effective throughput": lambda: HadarRounds(Hadar(restart=RESTART)),
}
_RIVALS: Final[Mapping[str, _Rival]] = {
    "gavel": _Rival(_gavel, 1.21, 1.20, Bound.STATED),
    "tiresias": _Rival(Tiresias, 1.35, 1.40),
    "yarn-cs": _Rival(YarnCapacity, 1.67),
}

_INPUTS: Final = (
    "Jobs are drawn: the trace's own 480 are not public. Sizes in K80 hours, widths of the Philly trace, Gavel's rates."
)
_ROOM: Final = (
    "Gavel keeps the GPUs busy, on types that fit: so little is left to gain on it, as the fastest possible shows. Both"
    " others leave jobs on the slow GPUs that they began on. " + _INPUTS
)


def static(task: Task) -> Outcome:
    """Total time, median completion and utilisation by scheduler. Raises ExperimentError, ProfileError, ReplayError."""
    rates = load_gavel_rates(task.file("gavel", "throughputs.json"))
    work = sized_work(QUICK if task.quick else JOBS, task.seeds[0], rates)
    makers = [*_OURS.items(), *((name, rival.make) for name, rival in _RIVALS.items())]
    runs = {
        name: replay(work, SIXTY, make(), period=360.0, overhead=RESTART)
        for name, make in task.tracked(makers, "replaying")
    }
    curves = {f"{name} {kind}": run.utilisation_of(kind) for name, run in runs.items() for kind in TYPES}
    return Outcome("hadar-static", tuple(_rows(runs, fastest(work, SIXTY.gpus))), curves)


def sized_work(jobs: int, seed: int, rates: Knowledge) -> tuple[Work, ...]:
    """The jobs of `traces.generating.hadar` with Gavel's rates. Raises ExperimentError."""
    return tuple(_work(job.id, _MEASURED[job.model], job.gpus, job.duration, rates) for job in hadar(jobs, seed).jobs)


def _work(job: str, model: str, width: int, seconds: float, rates: Knowledge) -> Work:
    profile = rates.models.get(model)
    if profile is None or HOURS_OF not in profile.scaling:
        raise ExperimentError(f"throughputs.json has no rates of {model} on {HOURS_OF}: use the data set's own")
    known = {kind: profile.scaling[kind].at(width) for kind in TYPES if kind in profile.scaling}
    return Work(job, width, max(width, round(seconds * known[HOURS_OF])), known, model=model)


def _rows(runs: Mapping[str, Replayed], least: float) -> Iterator[Row]:
    ours = runs["hadar"]
    for name, run in runs.items():
        yield Row(f"{name} total time", "h", run.makespan / HOUR, bound=Bound.STATED, note=_INPUTS)
        yield Row(f"{name} median completion", "h", run.median_jct / HOUR, bound=Bound.STATED, note=_INPUTS)
        yield Row(f"{name} utilisation", "", run.utilisation, bound=Bound.STATED, note=_INPUTS)
        yield Row(f"{name} decision, slowest", "s", max(run.decisions), bound=Bound.STATED, note=_INPUTS)
    yield Row("fastest possible total time", "h", least / HOUR, bound=Bound.STATED, note=_ROOM)
    over = ours.makespan / least
    yield Row("hadar total time over the fastest possible", "x", over, None, 1.0, 0.1, Bound.AT_MOST, note=_ROOM)
    for name, rival in _RIVALS.items():
        run = runs[name]
        total, median = run.makespan / ours.makespan, run.median_jct / ours.median_jct
        yield Row(f"{name} over hadar: total time", "x", total, rival.total, bound=rival.bound, note=_ROOM)
        if rival.median is not None:
            yield Row(
                f"{name} over hadar: median completion", "x", median, rival.median, bound=Bound.AT_LEAST, note=_INPUTS
            )
