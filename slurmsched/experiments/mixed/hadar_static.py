"""Hadar's trace-driven comparison (Sultana et al., section IV, figures 3 and 4): 480 jobs on 60 GPUs.

The jobs are drawn from the public Philly trace as the paper says, in several draws, since its own 480 are not public;
and beside that evenly over the four sizes of table II, which overloads the cluster with long jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, ExperimentError, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.mixed.replay_policies import GavelReplayPolicy, HadarReplayPolicy
from slurmsched.experiments.mixed.workloads import (
    CLUSTER_OF_60,
    GPU_TYPES,
    LIVE_NOTE,
    WIDTH_VARIANTS,
    authors_rounds,
    drawn_width,
    makespan_lower_bound,
    philly_jobs,
    read_busiest_hours,
    replay_live,
    sized_jobs,
)
from slurmsched.knowledge import load_gavel_rates
from slurmsched.policies.gavel.objectives import GAVEL_POLICIES
from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import UtilityFactory, effective_throughput, slack_aware
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import daemon_rounds
from slurmsched.simulation.replay import Decider, ReplayJob

JOB_COUNT: Final = 480
QUICK_JOB_COUNT: Final = 120
FEWEST_DRAWS: Final = 10
"""Fewest draws from the trace; there are equally many for each seed."""
RESTART_SECONDS: Final = 10.0
HOUR: Final = 3600.0


def _hadar(make_utility: UtilityFactory, *, mixes_types: bool = True) -> Decider:
    scheduler = HadarScheduler(restart_cost=RESTART_SECONDS, make_utility=make_utility)
    return HadarReplayPolicy(scheduler, mixes_types=mixes_types)


def _gavel(policy: str) -> Decider:
    return GavelReplayPolicy("gavel", GAVEL_POLICIES[policy], np.random.default_rng(0))


_HADAR: Final = "hadar"
POLICIES: Final[Mapping[str, Callable[[], Decider]]] = {
    _HADAR: lambda: _hadar(effective_throughput),
    "hadar without mixed gangs": lambda: _hadar(effective_throughput, mixes_types=False),
    "hadar, timely": lambda: _hadar(slack_aware),
    "hadar, timely, without mixed gangs": lambda: _hadar(slack_aware, mixes_types=False),
    "gavel": lambda: _gavel("max_min_fairness_perf"),
    "gavel, for total time": lambda: _gavel("min_total_duration_perf"),
}
"""Policies of the replay by name. `hadar` has the paper's utility, `timely` is ours."""

BASELINES: Final = ("tiresias", "yarn-cs")
"""The daemon's policies that the paper compares with, in the authors' rounds."""
_LIVE_HADAR, _LIVE_UNIFIED = "live: hadar", "live: unified"
LIVE_POLICIES: Final = (_LIVE_HADAR, _LIVE_UNIFIED, "live: gavel", "live: tiresias", "live: yarn-cs")
_QUICK_POLICIES: Final = frozenset({_HADAR, "hadar, timely", "gavel", *BASELINES, *LIVE_POLICIES})

PUBLISHED_TOTALS: Final[Mapping[str, float]] = {_HADAR: 40.0, "yarn-cs": 68.0}
"""Hours to the end of the last job (section IV-B)."""
PUBLISHED_RATIOS: Final[Mapping[str, tuple[float, float | None]]] = {
    "gavel": (1.21, 1.20),
    "tiresias": (1.35, 1.40),
    "yarn-cs": (1.67, None),
}
"""Total time and median completion over Hadar's, by policy."""

TRACE_LOAD, EVEN_LOAD = "philly", "even"
_NEAR_BOUND: Final = 0.1
_INPUTS_NOTES: Final[Mapping[str, str]] = {
    TRACE_LOAD: "Jobs are drawn from the Philly trace, arrivals of 3 to 10 o'clock, with the trace's GPUs and"
    " durations, as hours on a P100; a job has a model of its size at Gavel's rates. Not held, because the paper's own"
    " 480 jobs and their models are not public, and the longest of them decides the total time: the draws' lowest and"
    " highest stand beside the mean. ",
    EVEN_LOAD: "Jobs are drawn evenly over the four sizes, in K80 hours, GPUs per job as in the Philly trace. Not held,"
    " because the paper takes sizes from the trace; here a quarter of all jobs takes 60 to 100 GPU-hours, so that the"
    " GPUs are busy to the end whatever the policy, and no schedule gains much on Gavel. ",
}
_BASELINES_NOTE: Final = (
    "Tiresias and YARN-CS are the daemon's policies of these names with default guards, in the authors' rounds; running"
    " jobs keep their GPUs. "
)
_BOUND_NOTE: Final = (
    "No schedule is shorter than the longest job on its fastest type, or than all work on the types that suit it best."
)
_LONG_FIRST_NOTE: Final = "By the paper's utility long jobs come first, so that half of all jobs end late. "
_GANGS_NOTE: Final = (
    "A type with 20 GPUs holds two gangs of 8 and leaves four GPUs idle under Gavel. So the published gain needs far"
    " wider gangs than the trace's, 70 % of which have one GPU. Gangs of 4 leave no GPU idle. "
)


@dataclass(frozen=True, slots=True)
class _RunConfig:
    """One replay. `width_variant` is a key of `WIDTH_VARIANTS`, or empty for the drawn number of GPUs."""

    data: Path
    load: str
    draw: int
    job_count: int
    policy: str = ""
    width_variant: str = ""


@dataclass(frozen=True, slots=True)
class _RunFigures:
    """Times in hours; the lower bound on the total time; utilisation over time, by GPU type and in all."""

    total: float
    median: float
    utilisation: float
    slowest_decision_s: float
    bound: float
    curves: Mapping[str, Sequence[tuple[float, float]]]


def run_hadar_static(setup: ExperimentSetup) -> ExperimentResult:
    """Measures total time, median completion and utilisation by policy, over draws of both loads.

    With `quick` of fewer jobs and policies, one draw for each seed, and without other gang widths. Raises
    ExperimentError, ProfileError, ReplayError, TraceError.
    """
    setup.data_file("traces", "philly.csv")
    data, count = setup.data_file("gavel", "throughputs.json").parent.parent, JOB_COUNT
    per_seed = max(1, ceil(FEWEST_DRAWS / len(setup.seeds)))
    policies = [*POLICIES, *BASELINES, *LIVE_POLICIES]
    if setup.quick:
        count, per_seed = QUICK_JOB_COUNT, 1
        policies = [name for name in policies if name in _QUICK_POLICIES]
    draws = {
        TRACE_LOAD: [seed * FEWEST_DRAWS + draw for seed in setup.seeds for draw in range(per_seed)],
        EVEN_LOAD: list(setup.seeds),
    }
    configs = [
        _RunConfig(data, load, draw, count, policy)
        for load, seeds in draws.items()
        for draw in seeds
        for policy in policies
    ]
    wide = [
        _RunConfig(data, EVEN_LOAD, draw, count, policy, variant)
        for variant in WIDTH_VARIANTS
        for draw in draws[EVEN_LOAD]
        for policy in (_HADAR, "hadar without mixed gangs", "gavel")
        if not setup.quick
    ]
    runs = setup.run_all(_run, [*configs, *wide], "replaying")
    rows = list[FigureRow]()
    for load in draws:
        by_policy = {policy: _of_policy(runs, load, policy) for policy in policies}
        rows += _load_rows(load, by_policy)
    for variant in {config.width_variant: None for config in wide}:
        rows += _width_variant_rows(variant, {name: _of_policy(runs, EVEN_LOAD, name, variant) for name in POLICIES})
    curves = {
        f"{load}: {name}{kind and ' '}{kind}": curve
        for load, seeds in draws.items()
        for name in policies
        if name not in LIVE_POLICIES
        for kind, curve in runs[_RunConfig(data, load, seeds[0], count, name)].curves.items()
    }
    return ExperimentResult("hadar-static", tuple(rows), curves)


def _of_policy(
    runs: Mapping[_RunConfig, _RunFigures], load: str, policy: str, variant: str = ""
) -> Sequence[_RunFigures]:
    """Returns the figures of every draw, in order."""
    wanted = (load, policy, variant)
    return [run for config, run in runs.items() if (config.load, config.policy, config.width_variant) == wanted]


@cache
def _jobs(config: _RunConfig) -> tuple[ReplayJob, ...]:
    rates = load_gavel_rates(config.data / "gavel" / "throughputs.json")
    if config.load == TRACE_LOAD:
        trace = read_busiest_hours(config.data / "traces" / "philly.csv")
        return philly_jobs(trace, config.job_count, config.draw, rates)
    return sized_jobs(config.job_count, config.draw, rates, WIDTH_VARIANTS.get(config.width_variant, drawn_width))


def _run(config: _RunConfig) -> _RunFigures:
    jobs = _jobs(replace(config, policy=""))
    rounds, live = authors_rounds(RESTART_SECONDS), config.policy.removeprefix("live: ")
    if config.policy in POLICIES:
        run = replay(jobs, CLUSTER_OF_60, POLICIES[config.policy](), rounds)
    elif config.policy in BASELINES:
        run = replay_live(config.policy, jobs, CLUSTER_OF_60, replace(rounds, leases=True))
    elif config.policy in LIVE_POLICIES:
        run = replay_live(live, jobs, CLUSTER_OF_60, daemon_rounds(RESTART_SECONDS, rounds.period))
    else:
        raise ExperimentError(f"there is no policy '{config.policy}' in this experiment")
    curves = {"": run.utilisation_curve(), **{kind: run.utilisation_curve(kind) for kind in GPU_TYPES}}
    return _RunFigures(
        run.makespan / HOUR,
        run.median_jct / HOUR,
        run.utilisation,
        max(run.decisions),
        fastest_possible(jobs) / HOUR,
        curves,
    )


def fastest_possible(jobs: Sequence[ReplayJob]) -> float:
    """Returns a lower bound on the total time in seconds on the 60 GPUs, of jobs that are all there at the start."""
    longest = max(job.steps / max(job.rates.values()) for job in jobs)
    return max(longest, makespan_lower_bound(jobs, CLUSTER_OF_60.gpus_by_type))


def _load_rows(load: str, by_policy: Mapping[str, Sequence[_RunFigures]]) -> Iterator[FigureRow]:
    for name, runs in by_policy.items():
        note = _note(load, name)
        published = PUBLISHED_TOTALS.get(name.removeprefix("live: "))
        yield from _spread_rows(f"{load}: {name} total time", "h", [run.total for run in runs], published, note)
        for figure, unit, measured in (
            ("median completion", "h", fmean(run.median for run in runs)),
            ("utilisation", "", fmean(run.utilisation for run in runs)),
            ("decision, slowest", "s", max(run.slowest_decision_s for run in runs)),
        ):
            yield FigureRow(f"{load}: {name} {figure}", unit, measured, bound=Bound.INFORMATIVE, note=note)
    ours = by_policy[_HADAR]
    fastest = fmean(run.bound for run in ours)
    yield FigureRow(f"{load}: fastest possible total time", "h", fastest, bound=Bound.INFORMATIVE, note=_BOUND_NOTE)
    for name in (_HADAR, "hadar, timely", "gavel", _LIVE_HADAR, _LIVE_UNIFIED):
        over_bound = fmean(run.total / run.bound for run in by_policy[name])
        held = (load, name) == (EVEN_LOAD, "hadar, timely")
        bound = Bound.AT_MOST if held else Bound.INFORMATIVE
        metric = f"{load}: {name} total time over the fastest possible"
        yield FigureRow(metric, "x", over_bound, None, None, _NEAR_BOUND, bound, _BOUND_NOTE, 1.0, chosen_after=held)
    yield from _ratio_rows(load, by_policy)


def _ratio_rows(load: str, by_policy: Mapping[str, Sequence[_RunFigures]]) -> Iterator[FigureRow]:
    """Compares every policy with Hadar, draw by draw: with the paper's utility, with ours, and with the daemon's."""
    for ours in (_HADAR, "hadar, timely", _LIVE_HADAR):
        prefix = "live: " if ours.startswith("live: ") else ""
        for rival, (total, median) in PUBLISHED_RATIOS.items():
            pairs = list(zip(by_policy[prefix + rival], by_policy[ours], strict=True))
            metric = f"{load}: {prefix}{rival} over {ours.removeprefix('live: ')}"
            note = _note(load, rival if rival in BASELINES and not prefix else ours)
            totals, medians = [
                [theirs.total / own.total for theirs, own in pairs],
                [theirs.median / own.median for theirs, own in pairs],
            ]
            yield from _spread_rows(f"{metric}: total time", "x", totals, total, note)
            of_medians = _LONG_FIRST_NOTE + note if ours == _HADAR else note
            yield from _spread_rows(f"{metric}: median completion", "x", medians, median, of_medians)
    pairs = list(zip(by_policy[_LIVE_UNIFIED], by_policy[_LIVE_HADAR], strict=True))
    for figure, ratios in (
        ("total time", [default.total / own.total for default, own in pairs]),
        ("median completion", [default.median / own.median for default, own in pairs]),
    ):
        metric = f"{load}: {_LIVE_UNIFIED} over hadar: {figure}"
        yield from _spread_rows(metric, "x", ratios, None, _note(load, _LIVE_UNIFIED))
    for ours in (_HADAR, "hadar, timely"):
        unmixed = f"{ours}, without mixed gangs" if "," in ours else f"{ours} without mixed gangs"
        if unmixed in by_policy:
            gains = [theirs.total / own.total for theirs, own in zip(by_policy[unmixed], by_policy[ours], strict=True)]
            metric = f"{load}: {ours}: total time without over with mixed gangs"
            yield from _spread_rows(metric, "x", gains, None, _note(load, ours))


def _spread_rows(
    metric: str, unit: str, by_draw: Sequence[float], published: float | None, note: str
) -> Iterator[FigureRow]:
    """Shows the mean of the draws beside the published figure, and the lowest and highest draw."""
    yield FigureRow(metric, unit, fmean(by_draw), published, bound=Bound.INFORMATIVE, note=note)
    if len(by_draw) > 1:
        yield FigureRow(f"{metric}, lowest draw", unit, min(by_draw), bound=Bound.INFORMATIVE, note=note)
        yield FigureRow(f"{metric}, highest draw", unit, max(by_draw), bound=Bound.INFORMATIVE, note=note)


def _width_variant_rows(variant: str, by_policy: Mapping[str, Sequence[_RunFigures]]) -> Iterator[FigureRow]:
    """Compares Hadar with Gavel, with itself without mixed gangs, and with the lower bound."""
    ours, note = by_policy[_HADAR], _GANGS_NOTE + _INPUTS_NOTES[EVEN_LOAD]
    for name, published in (("gavel", PUBLISHED_RATIOS["gavel"][0]), ("hadar without mixed gangs", None)):
        ratio = fmean(theirs.total / own.total for theirs, own in zip(by_policy[name], ours, strict=True))
        metric = f"{variant}: {name} over hadar: total time"
        yield FigureRow(metric, "x", ratio, published, bound=Bound.INFORMATIVE, note=note)
    over_bound = fmean(run.total / run.bound for run in ours)
    metric = f"{variant}: hadar total time over the fastest possible"
    yield FigureRow(metric, "x", over_bound, bound=Bound.INFORMATIVE, note=_BOUND_NOTE, limit=1.0)
    for name in (_HADAR, "gavel"):
        utilisation = fmean(run.utilisation for run in by_policy[name])
        yield FigureRow(f"{variant}: {name} utilisation", "", utilisation, bound=Bound.INFORMATIVE, note=note)


def _note(load: str, policy: str) -> str:
    if policy.startswith("live: "):
        return LIVE_NOTE + _INPUTS_NOTES[load]
    return (_BASELINES_NOTE if policy in BASELINES else "") + _INPUTS_NOTES[load]
