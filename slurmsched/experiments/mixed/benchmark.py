"""`mixed`: every policy on mixed workloads, by load and by what is known, through the daemon's rounds.

Default settings, rounds and restart costs; only `policy.parts` is set where a workload has parts of GPUs and the policy
can schedule them. All policies of a case have the same jobs at the same times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Final, cast

import numpy as np

from slurmsched.experiments.experiment import (
    KNOWLEDGE,
    Bound,
    ExperimentError,
    ExperimentResult,
    ExperimentSetup,
    MixedColumn,
    MixedRow,
)
from slurmsched.experiments.mixed.benchmark_workloads import (
    COMPARED_KNOWLEDGE,
    SITE_OPTIONS,
    SITE_SETTINGS,
    WORKLOADS,
    MixedInputs,
    mean_alone,
    true_profiles,
)
from slurmsched.experiments.site_promises.measures import JobOutcome, demand_periods, max_min_fair
from slurmsched.policies.finish.restart import exchange_types, move_where_fastest, try_faster_idle_types
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.place.placement import CONSOLIDATED, FIRST_FIT
from slurmsched.policies.place.worth import LEAST_LOSS
from slurmsched.policies.policies import ORDERS, PARTS, POLICIES, Choices, PolicyRow
from slurmsched.policies.session import FinishStep
from slurmsched.policies.sizes import Proportional, Tune
from slurmsched.policies.stages import Entitlement, Situation
from slurmsched.simulation import PolicyChoice, SimulationError, SimulationResult, parse_policy, run_metrics
from slurmsched.simulation.engine import simulate
from slurmsched.simulation.results import finish_time_fairness
from slurmsched.traces.generators import HOUR

LOADS: Final = (0.6, 0.75, 0.9, 1.05, 1.2, 1.5)
JOBS, QUICK_JOBS, MOST_JOBS = 200, 20, 2000
QUICK_LOAD: Final = 0.9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy that is compared: the one that `choice` names, or a variant of it that no site can set, as a `row`."""

    name: str
    choice: PolicyChoice
    row: PolicyRow | None = None


def _changed(name: str, what: str, change: Callable[[Pipeline], Pipeline]) -> PolicyRow:
    """Returns the row of that policy with another pipeline."""
    row = POLICIES[name]
    return replace(
        row, summary=f"{row.summary}, {what}", make=lambda chosen: change(cast("Pipeline", row.make(chosen)))
    )


def _without_types(pipeline: Pipeline) -> Pipeline:
    """Returns the pipeline with a market that knows no rate by GPU type, and so moves no job to another type."""
    entitle = pipeline.entitle
    if entitle is None:
        return pipeline

    def blind(situation: Situation) -> Entitlement:
        known = situation.knowledge
        models, tasks, own = (
            {name: replace(profile, scaling={}) for name, profile in profiles.items()}
            for profiles in (known.models, known.tasks, known.own)
        )
        unknown = replace(known, models=models, tasks=tasks, own=own, by_family={})
        return entitle(replace(situation, knowledge=unknown))

    return replace(pipeline, entitle=blind)


_MOVES: Final[tuple[FinishStep, ...]] = (exchange_types, move_where_fastest, try_faster_idle_types)


def _without_moves(steps: Sequence[FinishStep]) -> tuple[FinishStep, ...]:
    return tuple(step for step in steps if step not in _MOVES)


_UNIFIED_WITHOUT: Final[Mapping[str, Callable[[Pipeline], Pipeline]]] = {
    "types": _without_types,
    "sizes": lambda pipeline: replace(pipeline, sizing=Proportional()),
    "fragments": lambda pipeline: replace(pipeline, node_score=CONSOLIDATED),
    "packing": lambda pipeline: replace(pipeline, node_score=FIRST_FIT),
    "migration": lambda pipeline: replace(
        pipeline,
        finish_steps=_without_moves(pipeline.finish_steps),
        last_steps=_without_moves(pipeline.last_steps),
    ),
}
"""Parts of `unified` that are left out: rates by GPU type, CPUs and memory by sensitivity, the worth of idle resources
(consolidation decides), both of that (the first nodes that fit), and moves of running jobs to where they are faster.
Tickets are left out by `unified/0`."""

VARIANTS: Final[Mapping[str, Candidate]] = {
    "hadar-tune": Candidate(
        "hadar-tune",
        PolicyChoice("hadar"),
        _changed("hadar", "sized by tune", lambda pipeline: replace(pipeline, sizing=Tune())),
    ),
    "unified-worth": Candidate(
        "unified-worth",
        PolicyChoice("unified"),
        _changed("unified", "placed by worth", lambda pipeline: replace(pipeline, node_score=LEAST_LOSS)),
    ),
}
"""Variants by name."""

ABLATIONS: Final[Mapping[str, Candidate]] = {
    (name := f"unified-no-{part}"): Candidate(
        name, PolicyChoice("unified"), _changed("unified", f"without {part}", change)
    )
    for part, change in _UNIFIED_WITHOUT.items()
}
"""`unified` without one of its parts, by name; compared where they are named."""

CANDIDATES: Final = (
    "slurm",
    "synergy/las",
    "synergy/fifo",
    "synergy/srtf",
    "synergy/ftf",
    "synergy-greedy/las",
    "proportional/las",
    "proportional/srtf",
    "drf",
    "tetris",
    "tesserae/las",
    "tesserae-ftf",
    "tesserae-packed/las",
    "fgd/las",
    "tiresias",
    "yarn-cs",
    "gavel",
    "hadar",
    "hadare",
    "gandiva-fair",
    "unified",
    *VARIANTS,
)
"""Every policy, where it takes one with the default order, and Synergy with all of them."""
QUICK_CANDIDATES: Final = ("slurm", "synergy/las", "hadar", "unified")


def candidate_named(text: str) -> Candidate:
    """Returns a variant, or a policy as in `synergy/srtf`. Raises PolicyError for an unknown one."""
    if variant := VARIANTS.get(text) or ABLATIONS.get(text):
        return variant
    choice = parse_policy(text)
    return Candidate(choice.name, choice)


@dataclass(frozen=True, slots=True)
class MixedCase:
    """One run of a candidate, by its name; `data` has the data sets."""

    inputs: MixedInputs
    policy: str
    data: Path | None = None


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """What a run comes to, by column; `problem` says why it did not end. `alone` is the mean hours that the jobs take
    if each is alone on the cluster."""

    figures: Mapping[str, float]
    problem: str = ""
    alone: float = nan


_ALONE: Final = "each job alone, on the GPUs that are fastest for it and with all CPUs of its nodes"

UNITS: Final[Mapping[MixedColumn, str]] = {
    MixedColumn.MEAN: "h",
    MixedColumn.MEDIAN: "h",
    MixedColumn.P99: "h",
    MixedColumn.MAKESPAN: "h",
    MixedColumn.WORST_RHO: "x",
    MixedColumn.P95_RHO: "x",
    MixedColumn.SHORTFALL: "part",
    MixedColumn.USEFUL: "part",
    MixedColumn.ALLOCATED: "part",
    MixedColumn.FRAGMENTED: "part",
    MixedColumn.RESTARTS: "",
    MixedColumn.MIGRATIONS: "",
    MixedColumn.LOST: "GPU-h",
    MixedColumn.DECISION: "s",
    MixedColumn.WORST_DECISION: "s",
    MixedColumn.UNFINISHED: "",
}


def run_mixed_case(case: MixedCase) -> CaseFigures:
    """Simulates a case with the daemon's rounds. A policy under which jobs can never start has no figures.

    Raises ExperimentError.
    """
    candidate, inputs = candidate_named(case.policy), case.inputs
    choice = candidate.choice
    parts = WORKLOADS[inputs.workload].parts and POLICIES[choice.system].reads(PARTS)
    settings = replace(SITE_SETTINGS, policy=replace(SITE_SETTINGS.policy, parts=parts))
    decider = candidate.row.make(Choices(ORDERS[choice.order](choice.las_queues))) if candidate.row else None
    scenario, options = inputs.scenario(ExperimentSetup(case.data)), replace(SITE_OPTIONS, seed=inputs.seed)
    try:
        run = simulate(scenario, choice, options, settings, policy=decider)
    except SimulationError as error:
        figures = dict.fromkeys(map(str, MixedColumn), nan)
        return CaseFigures(figures | {str(MixedColumn.UNFINISHED): float(len(scenario.trace.jobs))}, str(error))
    alone = mean_alone(scenario.trace.jobs, scenario.nodes, true_profiles()) / HOUR
    return CaseFigures({str(column): value for column, value in case_figures(run).items()}, alone=alone)


def case_figures(run: SimulationResult) -> Mapping[MixedColumn, float]:
    """Returns the columns of a run. Completion and fairness are those of the jobs that completed.

    Useful and allocated are parts of the GPU time from the first arrival to the last end. Fragmented is the mean part
    of all GPUs that are idle on nodes with fewer of them than the largest waiting job needs. Lost are GPU-hours that
    jobs held without work that was kept: restarts, work after the last checkpoint, and completing.
    """
    metrics, rho = run_metrics(run), finish_time_fairness(run)
    held, useful = sum(job.service for job in run.jobs), sum(job.useful for job in run.jobs)
    decisions = np.array(run.decisions or (nan,))
    return {
        MixedColumn.MEAN: metrics.avg_jct_s / HOUR,
        MixedColumn.MEDIAN: metrics.median_jct_s / HOUR,
        MixedColumn.P99: metrics.p99_jct_s / HOUR,
        MixedColumn.MAKESPAN: metrics.makespan_s / HOUR,
        MixedColumn.WORST_RHO: metrics.ftf_max,
        MixedColumn.P95_RHO: float(np.percentile(rho, 95)) if len(rho) else nan,
        MixedColumn.SHORTFALL: worst_shortfall(run),
        MixedColumn.USEFUL: metrics.gpu_utilization,
        MixedColumn.ALLOCATED: held / (metrics.makespan_s * run.total_gpus),
        MixedColumn.FRAGMENTED: metrics.stranded / run.total_gpus,
        MixedColumn.RESTARTS: float(metrics.restarts),
        MixedColumn.MIGRATIONS: float(metrics.migrations),
        MixedColumn.LOST: (held - useful) / HOUR,
        MixedColumn.DECISION: float(np.median(decisions)),
        MixedColumn.WORST_DECISION: float(np.max(decisions)),
        MixedColumn.UNFINISHED: float(metrics.jobs - metrics.finished),
    }


def worst_shortfall(run: SimulationResult) -> float:
    """Returns the largest part of the GPU time due to a user that this user did not hold; 0 if nobody fell short.

    Due is the max-min fair part of all GPUs, whatever their type, while the user's jobs are there, so that time in
    which they wait counts, and no more GPUs than they ask for.
    """
    held, groups = defaultdict[str, float](float), defaultdict[str, list[JobOutcome]](list)
    for job in run.jobs:
        held[job.user] += job.service
        groups[job.user].append(JobOutcome(job.job, job.user, job.gpus, job.arrival, {}, end=job.end))
    until = max((job.end for job in run.jobs if job.end is not None), default=0.0)
    due = np.zeros(len(groups))
    for seconds, demands in demand_periods(list(groups.values()), until):
        due += seconds * max_min_fair(demands, run.total_gpus)
    parts = (1.0 - held[user] / owed for user, owed in zip(groups, due.tolist(), strict=True) if owed > 0)
    return max(0.0, *parts, 0.0)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is compared: all by default."""

    workloads: tuple[str, ...]
    knowledge: tuple[str, ...]
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    jobs: int

    def cases(self, data: Path | None) -> Iterator[MixedCase]:
        """Yields every run, all policies of one workload at one load before the next."""
        for parts in product(self.workloads, self.knowledge, self.loads, self.seeds, self.policies):
            workload, knowledge, load, seed, policy = parts
            yield MixedCase(MixedInputs(workload, knowledge, load, seed, self.jobs), policy, data)


def selection(setup: ExperimentSetup) -> Selection:
    """Returns what the options select; the small version has few jobs and policies of one workload at one load, and one
    seed. Raises ExperimentError, PolicyError."""
    options = setup.options
    policies = _names(options, "policies", QUICK_CANDIDATES if setup.quick else CANDIDATES)
    loads = _names(options, "loads", [f"{load:g}" for load in ([QUICK_LOAD] if setup.quick else LOADS)])
    return Selection(
        _known(_names(options, "workloads", ["drawn"] if setup.quick else WORKLOADS), WORKLOADS, "workload"),
        _known(_names(options, "knowledge", COMPARED_KNOWLEDGE), KNOWLEDGE, "knowledge"),
        tuple(_load(text) for text in loads),
        tuple(dict.fromkeys(candidate_named(text).name for text in policies)),
        setup.seeds[:1] if setup.quick else setup.seeds,
        _jobs(options.get("jobs", "")) or (QUICK_JOBS if setup.quick else JOBS),
    )


def _names(options: Mapping[str, str], option: str, default: Iterable[str]) -> Sequence[str]:
    given = [part.strip() for part in options.get(option, "").split(",")]
    return [name for name in given if name] or list(default)


def _known(names: Sequence[str], known: Sequence[str] | Mapping[str, object], what: str) -> tuple[str, ...]:
    if unknown := [name for name in names if name not in known]:
        raise ExperimentError(f"there is no {what} '{unknown[0]}'; known are {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def _jobs(text: str) -> int:
    """Returns the number of jobs of a workload, 0 if none is given. Raises ExperimentError."""
    if text and not (text.isdecimal() and 1 < int(text) <= MOST_JOBS):
        raise ExperimentError(f"--jobs {text}: expected a number from 2 to {MOST_JOBS}")
    return int(text or 0)


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = nan
    if not 0 < load <= 100:  # noqa: PLR2004  # far above any real load
        raise ExperimentError(f"--loads {text}: expected parts of the cluster's capacity, as in 0.6,0.9,1.5")
    return load


def run_mixed(setup: ExperimentSetup) -> ExperimentResult:
    """Compares the candidates in every column; nothing is asked of the figures. Raises ExperimentError, PolicyError."""
    selected = selection(setup)
    runs = setup.run_all(run_mixed_case, selected.cases(setup.data), "comparing policies")
    groups = defaultdict[MixedCase, list[CaseFigures]](list)
    for case, of_case in runs.items():
        groups[replace(case, inputs=replace(case.inputs, seed=0))].append(of_case)
    return ExperimentResult("mixed", tuple(row for case, of in groups.items() for row in mixed_rows(case, of)))


def mixed_rows(case: MixedCase, runs: Sequence[CaseFigures]) -> Iterator[MixedRow]:
    """Yields the columns of a candidate, from its runs of all seeds."""
    inputs, policy = case.inputs, case.policy
    problems = "; ".join(dict.fromkeys(run.problem for run in runs if run.problem))
    alone = fmean(run.alone for run in runs)
    bound = "" if np.isnan(alone) else f"No policy can have a mean under {alone:.3g} h: {_ALONE}"
    for column, unit in UNITS.items():
        values = [run.figures[column] for run in runs]
        ends = (nan, nan) if any(map(np.isnan, values)) else (min(values), max(values))
        yield MixedRow(
            metric=f"{inputs.workload}, {inputs.knowledge}, load {inputs.load:g}, {policy}: {column}",
            unit=unit,
            measured=fmean(values),
            bound=Bound.INFORMATIVE,
            note=problems or (bound if column is MixedColumn.MEAN else ""),
            workload=inputs.workload,
            knowledge=inputs.knowledge,
            load=inputs.load,
            policy=policy,
            column=column,
            least=ends[0],
            most=ends[1],
        )
