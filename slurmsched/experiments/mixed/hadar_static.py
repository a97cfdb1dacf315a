"""Hadar's trace-driven comparison (section IV, figures 3 and 4): 480 jobs of four sizes on 60 GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.mixed.fastest import fastest
from slurmsched.experiments.mixed.figures import Replayed
from slurmsched.experiments.mixed.gavel import GavelRounds
from slurmsched.experiments.mixed.hadar import HadarRounds
from slurmsched.experiments.mixed.reading import SIXTY, TYPES
from slurmsched.experiments.mixed.replay import replay
from slurmsched.experiments.mixed.rounds import RoundPolicy
from slurmsched.experiments.mixed.sized import READINGS, sized_work
from slurmsched.experiments.mixed.tiresias import Tiresias
from slurmsched.experiments.mixed.work import Work
from slurmsched.experiments.mixed.yarn import YarnCapacity
from slurmsched.knowledge import load_gavel_rates
from slurmsched.policies.gavel import POLICIES
from slurmsched.policies.hadar import Hadar, timely

__all__ = ["static"]

JOBS: Final = 480
QUICK: Final = 120
RESTART: Final = 10.0
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Rival:
    """A scheduler; `total` and `median` are how much longer it takes than Hadar as published. `bound`: how the total is
    held against that."""

    make: Callable[[], RoundPolicy]
    total: float
    median: float | None = None
    bound: Bound = Bound.AT_LEAST


def _gavel(policy: str = "max_min_fairness_perf") -> RoundPolicy:
    return GavelRounds("gavel", POLICIES[policy], np.random.default_rng(0))


_UNPUBLISHED: Final[Mapping[str, Callable[[], RoundPolicy]]] = {
    "hadar": lambda: HadarRounds(Hadar(restart=RESTART, valuing=timely)),
    "hadar, effective throughput": lambda: HadarRounds(Hadar(restart=RESTART)),
    "gavel, for total time": lambda: _gavel("min_total_duration_perf"),
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
    "Gavel keeps the GPUs busy, on types that fit: so little is left to gain on it, as the fastest possible shows; told"
    " to make the total time short it gains that itself. Tiresias and YARN leave jobs on the slow GPUs that they began"
    " on. " + _INPUTS
)
_WIDER: Final = (
    "Of gangs of 8 a type of 20 GPUs has two, and leaves four GPUs over under Gavel: so the published gain asks for"
    " gangs far wider than the trace's, 70 % of which are one GPU. Gangs of 4 leave nothing over. " + _INPUTS
)


def static(task: Task) -> Outcome:
    """Total time, median completion and utilisation by scheduler; the small version has no gangs of other widths.

    Raises ExperimentError, ProfileError, ReplayError.
    """
    rates = load_gavel_rates(task.file("gavel", "throughputs.json"))
    work = sized_work(QUICK if task.quick else JOBS, task.seeds[0], rates)
    makers = [*_UNPUBLISHED.items(), *((name, rival.make) for name, rival in _RIVALS.items())]
    runs = {
        name: replay(work, SIXTY, make(), period=360.0, overhead=RESTART)
        for name, make in task.tracked(makers, "replaying")
    }
    rows = [*_rows(runs, fastest(work, SIXTY.gpus))]
    for reading, of in task.tracked([] if task.quick else [*READINGS.items()], "with other gangs"):
        rows += _read_as(reading, sized_work(len(work), task.seeds[0], rates, of))
    curves = {name: run.utilisations for name, run in runs.items()}
    curves |= {f"{name} {kind}": run.utilisation_of(kind) for name, run in runs.items() for kind in TYPES}
    return Outcome("hadar-static", tuple(rows), curves)


def _read_as(reading: str, work: Sequence[Work]) -> Iterator[Row]:
    """Hadar and Gavel alone."""
    makers = {"hadar": _UNPUBLISHED["hadar"], "gavel": _RIVALS["gavel"].make}
    runs = {name: replay(work, SIXTY, make(), period=360.0, overhead=RESTART) for name, make in makers.items()}
    hours = {name: run.makespan / HOUR for name, run in runs.items()} | {"fastest": fastest(work, SIXTY.gpus) / HOUR}
    for name, metric in (
        ("gavel", f"{reading}: gavel over hadar: total time"),
        ("fastest", f"{reading}: fastest possible over hadar: total time"),
    ):
        published = 1.21 if name == "gavel" else None
        yield Row(metric, "x", hours[name] / hours["hadar"], published, bound=Bound.STATED, note=_WIDER)
    for name, run in runs.items():
        yield Row(f"{reading}: {name} utilisation", "", run.utilisation, bound=Bound.STATED, note=_WIDER)


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
