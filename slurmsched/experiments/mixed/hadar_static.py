"""Hadar's trace-driven comparison (Sultana et al., section IV, figures 3 and 4): 480 jobs on 60 GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.mixed.baselines import Tiresias, YarnCapacity, makespan_lower_bound
from slurmsched.experiments.mixed.gavel import GavelReplayPolicy
from slurmsched.experiments.mixed.hadar import HadarReplayPolicy
from slurmsched.experiments.mixed.workloads import (
    CLUSTER_OF_60,
    GPU_TYPES,
    LIVE_NOTE,
    WIDTH_VARIANTS,
    authors_rounds,
    replay_live,
    sized_jobs,
)
from slurmsched.knowledge import load_gavel_rates
from slurmsched.policies.gavel.objectives import GAVEL_POLICIES
from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import slack_aware
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import daemon_rounds
from slurmsched.simulation.replay import Decider, ReplayJob, ReplayResult

JOB_COUNT: Final = 480
QUICK_JOB_COUNT: Final = 120
RESTART_SECONDS: Final = 10.0
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A baseline scheduler, and its published total time and median completion relative to Hadar.

    `bound` says how the measured total time is compared with `total`.
    """

    make: Callable[[], Decider]
    total: float
    median: float | None = None
    bound: Bound = Bound.AT_LEAST


def _gavel_policy(policy: str = "max_min_fairness_perf") -> Decider:
    return GavelReplayPolicy("gavel", GAVEL_POLICIES[policy], np.random.default_rng(0))


_WITHOUT_PUBLISHED: Final[Mapping[str, Callable[[], Decider]]] = {
    "hadar": lambda: HadarReplayPolicy(HadarScheduler(restart_cost=RESTART_SECONDS, make_utility=slack_aware)),
    "hadar, effective throughput": lambda: HadarReplayPolicy(HadarScheduler(restart_cost=RESTART_SECONDS)),
    "gavel, for total time": lambda: _gavel_policy("min_total_duration_perf"),
}
_BASELINES: Final[Mapping[str, _Baseline]] = {
    "gavel": _Baseline(_gavel_policy, 1.21, 1.20, Bound.INFORMATIVE),
    "tiresias": _Baseline(Tiresias, 1.35, 1.40),
    "yarn-cs": _Baseline(YarnCapacity, 1.67),
}

_LIVE_POLICIES: Final = ("hadar", "gavel", "tiresias", "yarn-cs")

_INPUTS_NOTE: Final = (
    "Jobs are generated, because the trace's 480 are not public: sizes in K80 hours, GPUs per job as in the Philly"
    " trace, Gavel's rates."
)
_LOWER_BOUND_NOTE: Final = (
    "Gavel keeps the GPUs busy with jobs that suit their types, so that little can be gained on it, as the fastest"
    " possible shows; with makespan as its objective it gains that itself. Tiresias and YARN leave jobs on the slow"
    " GPUs on which they began. " + _INPUTS_NOTE
)
_GANGS_NOTE: Final = (
    "A type with 20 GPUs holds two gangs of 8 and leaves four GPUs idle under Gavel. So the published gain needs far"
    " wider gangs than the trace's, 70 % of which have one GPU. Gangs of 4 leave no GPU idle. " + _INPUTS_NOTE
)


def run_hadar_static(setup: ExperimentSetup) -> ExperimentResult:
    """Measures total time, median completion and utilisation by scheduler; with `quick` without other gang widths.

    Raises ExperimentError, ProfileError, ReplayError.
    """
    rates = load_gavel_rates(setup.data_file("gavel", "throughputs.json"))
    jobs = sized_jobs(QUICK_JOB_COUNT if setup.quick else JOB_COUNT, setup.seeds[0], rates)
    makers = [*_WITHOUT_PUBLISHED.items(), *((name, rival.make) for name, rival in _BASELINES.items())]
    runs = {
        name: replay(jobs, CLUSTER_OF_60, make(), authors_rounds(RESTART_SECONDS))
        for name, make in setup.track_progress(makers, "replaying")
    }
    rows = [*_static_rows(runs, makespan_lower_bound(jobs, CLUSTER_OF_60.gpus_by_type))]
    for width_variant, width in setup.track_progress(
        [] if setup.quick else [*WIDTH_VARIANTS.items()], "with other gangs"
    ):
        rows += _width_variant_rows(width_variant, sized_jobs(len(jobs), setup.seeds[0], rates, width))
    live_runs = {
        name: replay_live(name, jobs, CLUSTER_OF_60, daemon_rounds(RESTART_SECONDS, authors_rounds().period))
        for name in setup.track_progress(_LIVE_POLICIES, "as the daemon decides")
    }
    rows += _live_rows(live_runs, makespan_lower_bound(jobs, CLUSTER_OF_60.gpus_by_type))
    curves = {name: run.utilisation_curve() for name, run in runs.items()}
    curves |= {f"{name} {kind}": run.utilisation_curve(kind) for name, run in runs.items() for kind in GPU_TYPES}
    return ExperimentResult("hadar-static", tuple(rows), curves)


def _width_variant_rows(width_variant: str, jobs: Sequence[ReplayJob]) -> Iterator[FigureRow]:
    """Compares Hadar with Gavel and with the lower bound."""
    makers = {"hadar": _WITHOUT_PUBLISHED["hadar"], "gavel": _BASELINES["gavel"].make}
    runs = {name: replay(jobs, CLUSTER_OF_60, make(), authors_rounds(RESTART_SECONDS)) for name, make in makers.items()}
    hours = {name: run.makespan / HOUR for name, run in runs.items()} | {
        "fastest": makespan_lower_bound(jobs, CLUSTER_OF_60.gpus_by_type) / HOUR
    }
    for name, metric in (
        ("gavel", f"{width_variant}: gavel over hadar: total time"),
        ("fastest", f"{width_variant}: fastest possible over hadar: total time"),
    ):
        published = 1.21 if name == "gavel" else None
        yield FigureRow(metric, "x", hours[name] / hours["hadar"], published, bound=Bound.INFORMATIVE, note=_GANGS_NOTE)
    for name, run in runs.items():
        yield FigureRow(
            f"{width_variant}: {name} utilisation", "", run.utilisation, bound=Bound.INFORMATIVE, note=_GANGS_NOTE
        )


def _live_rows(runs: Mapping[str, ReplayResult], lower_bound: float) -> Iterator[FigureRow]:
    note = LIVE_NOTE + _INPUTS_NOTE
    for name, run in runs.items():
        for figure, unit, measured in (
            ("total time", "h", run.makespan / HOUR),
            ("median completion", "h", run.median_jct / HOUR),
            ("utilisation", "", run.utilisation),
        ):
            yield FigureRow(f"live: {name} {figure}", unit, measured, bound=Bound.INFORMATIVE, note=note)
    ours = runs["hadar"]
    over_bound = ours.makespan / lower_bound
    metric = "live: hadar total time over the fastest possible"
    yield FigureRow(metric, "x", over_bound, None, 1.0, bound=Bound.INFORMATIVE, note=note)
    for name, rival in _BASELINES.items():
        total, median = runs[name].makespan / ours.makespan, runs[name].median_jct / ours.median_jct
        for figure, measured, published in (
            ("total time", total, rival.total),
            ("median completion", median, rival.median),
        ):
            metric = f"live: {name} over hadar: {figure}"
            yield FigureRow(metric, "x", measured, published, bound=Bound.INFORMATIVE, note=note)


def _static_rows(runs: Mapping[str, ReplayResult], lower_bound: float) -> Iterator[FigureRow]:
    ours = runs["hadar"]
    for name, run in runs.items():
        yield FigureRow(f"{name} total time", "h", run.makespan / HOUR, bound=Bound.INFORMATIVE, note=_INPUTS_NOTE)
        yield FigureRow(
            f"{name} median completion", "h", run.median_jct / HOUR, bound=Bound.INFORMATIVE, note=_INPUTS_NOTE
        )
        yield FigureRow(f"{name} utilisation", "", run.utilisation, bound=Bound.INFORMATIVE, note=_INPUTS_NOTE)
        yield FigureRow(
            f"{name} decision, slowest", "s", max(run.decisions), bound=Bound.INFORMATIVE, note=_INPUTS_NOTE
        )
    yield FigureRow(
        "fastest possible total time", "h", lower_bound / HOUR, bound=Bound.INFORMATIVE, note=_LOWER_BOUND_NOTE
    )
    over_bound = ours.makespan / lower_bound
    yield FigureRow(
        "hadar total time over the fastest possible",
        "x",
        over_bound,
        None,
        1.0,
        0.1,
        Bound.AT_MOST,
        note=_LOWER_BOUND_NOTE,
    )
    for name, rival in _BASELINES.items():
        run = runs[name]
        total, median = run.makespan / ours.makespan, run.median_jct / ours.median_jct
        yield FigureRow(
            f"{name} over hadar: total time", "x", total, rival.total, bound=rival.bound, note=_LOWER_BOUND_NOTE
        )
        if rival.median is not None:
            yield FigureRow(
                f"{name} over hadar: median completion",
                "x",
                median,
                rival.median,
                bound=Bound.AT_LEAST,
                note=_INPUTS_NOTE,
            )
