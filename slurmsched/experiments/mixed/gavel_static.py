"""Gavel's policies on its static trace: 60 GPUs of three types, all jobs there at the start, free restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from cattrs import BaseValidationError, Converter

from slurmsched.experiments.experiment import Bound, ExperimentError, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.mixed.replay_policies import GavelReplayPolicy
from slurmsched.experiments.mixed.workloads import (
    CLUSTER_OF_60,
    LIVE_NOTE,
    authors_rounds,
    replay_live,
    static_trace_jobs,
)
from slurmsched.model.reasons import pluralise
from slurmsched.policies.gavel.objectives import GAVEL_POLICIES
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import daemon_rounds
from slurmsched.simulation.replay import ReplayJob, ReplayResult

TOLERANCE: Final = 0.03
HOUR: Final = 3600.0
QUICK_JOB_COUNT: Final = 120
LIVE_OBJECTIVE: Final = "max_min_fairness_perf"
"""Gavel's policy whose objective the daemon's policy `gavel` has."""
FEWEST_ORDER_DRAWS: Final = 5
"""Fewest replays of a blind policy with different random orders of GPU types, over which the figure is averaged;
as many for each seed. The other policies draw nothing."""

_LIVE_NOTE: Final = LIVE_NOTE + "Gavel's simulator has neither leases nor guards, and ends a round with its last job."
_FIXED_SUFFIX: Final = "_fixed"
_UTILISATION_NOTE: Final = "Not held apart: it follows from the makespan, which is held."
_DRAWN_NOTE: Final = "Our mean over several replays with random orders of GPU types; Gavel's figure is one replay."
_DROPPED_NOTE: Final = "Gavel's simulator drops {} because fewer steps than GPUs are left; ours end."


@dataclass(frozen=True, slots=True)
class _GavelResult:
    """A result of Gavel's simulator. Times are in seconds."""

    policy: str
    jobs: int
    completed: int
    makespan_s: float
    avg_jct_s: float
    utilisation: float

    @property
    def policy_name(self) -> str:
        """Gavel's name of the policy."""
        return self.policy.removesuffix(_FIXED_SUFFIX)


@dataclass(frozen=True, slots=True)
class _BaselineFile:
    simulations: tuple[_GavelResult, ...]


def run_gavel_static(setup: ExperimentSetup) -> ExperimentResult:
    """Compares makespan and mean JCT under each policy with Gavel's simulator; with `quick` only for small queues.

    FIFO with random types and Gandiva's random pairs are left out, because one random draw is no reference. Raises
    ExperimentError, TraceError, ProfileError.
    """
    jobs = static_trace_jobs(setup)
    known_results = [
        result
        for result in _read_baselines(setup.data_file("gavel", "baselines.json"))
        if result.policy_name in GAVEL_POLICIES
    ]
    selected = [result for result in known_results if not setup.quick or result.jobs <= QUICK_JOB_COUNT]
    rows = [row for result in setup.track_progress(selected, "replaying") for row in _policy_rows(result, jobs, setup)]
    same_as_live = [result for result in selected if result.policy_name == LIVE_OBJECTIVE]
    rows += [
        row
        for result in setup.track_progress(same_as_live, "as the daemon decides")
        for row in _live_rows(result, jobs)
    ]
    return ExperimentResult("gavel-static", tuple(rows))


def _live_rows(reference: _GavelResult, jobs: Sequence[ReplayJob]) -> Iterator[FigureRow]:
    """Compares the daemon's policy, whose objective is this one, with Gavel's simulator."""
    run = replay_live("gavel", jobs[: reference.jobs], CLUSTER_OF_60, daemon_rounds(0.0, authors_rounds().period))
    name = f"live: {reference.jobs} jobs, gavel"
    for figure, unit, ours, theirs in (
        ("makespan", "h", run.makespan / HOUR, reference.makespan_s / HOUR),
        ("mean JCT", "h", run.mean_jct / HOUR, reference.avg_jct_s / HOUR),
        ("utilisation", "", run.utilisation, reference.utilisation),
    ):
        yield FigureRow(f"{name}: {figure}", unit, ours, None, theirs, bound=Bound.INFORMATIVE, note=_LIVE_NOTE)


def _policy_rows(reference: _GavelResult, jobs: Sequence[ReplayJob], setup: ExperimentSetup) -> Iterator[FigureRow]:
    policy = GAVEL_POLICIES[reference.policy_name]
    seeds = [np.random.SeedSequence(setup.seeds[0])]
    if policy.blind:
        draws = ceil(FEWEST_ORDER_DRAWS / len(setup.seeds))
        seeds = [child for seed in setup.seeds for child in np.random.SeedSequence(seed).spawn(draws)]
    runs: list[ReplayResult] = [
        replay(
            jobs[: reference.jobs],
            CLUSTER_OF_60,
            GavelReplayPolicy(reference.policy_name, policy, np.random.default_rng(seed)),
            authors_rounds(),
        )
        for seed in seeds
    ]
    dropped = reference.jobs - reference.completed
    note = " ".join(
        [
            *([_DRAWN_NOTE] if policy.blind else []),
            *([_DROPPED_NOTE.format(pluralise(dropped, "job"))] if dropped else []),
        ]
    )
    name = f"{reference.jobs} jobs, {reference.policy_name}"
    makespan, jct = fmean(run.makespan for run in runs), fmean(run.mean_jct for run in runs)
    yield FigureRow(f"{name}: makespan", "h", makespan / HOUR, None, reference.makespan_s / HOUR, TOLERANCE, note=note)
    yield FigureRow(f"{name}: mean JCT", "h", jct / HOUR, None, reference.avg_jct_s / HOUR, TOLERANCE, note=note)
    utilisation = fmean(run.utilisation for run in runs)
    note = f"{_UTILISATION_NOTE} {note}".strip()
    yield FigureRow(
        f"{name}: utilisation", "", utilisation, None, reference.utilisation, bound=Bound.INFORMATIVE, note=note
    )


def _read_baselines(path: Path) -> tuple[_GavelResult, ...]:
    try:
        return Converter().structure(json.loads(path.read_text(encoding="utf-8")), _BaselineFile).simulations
    except (OSError, ValueError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected the figures of Gavel's simulator: {error!r}") from error
