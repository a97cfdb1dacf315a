"""Gavel's programs on small cases of `data/gavel/policy_vectors.json`: our optima beside those of its own policies.

The file is not trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Final

import numpy as np
from cattrs import BaseValidationError, Converter

from slurmsched.experiments.experiment import Bound, ExperimentError, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.policies.gavel.objectives import GAVEL_POLICIES, makespan
from slurmsched.policies.gavel.problem import GavelProblem, TimeFractions

_JOB_NAME = re.compile(r"[^\s(),\[\]'\"]+")
_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class GavelCaseInputs:
    """`throughputs`: steps per second by job and GPU type. A key that names two jobs, as `(0, 1)`, is a pair of them,
    with the rate of each beside the other. `cluster`: GPUs by type. `steps_remaining`, `seconds_since_start` and
    `scale_factors` (GPUs) by job. `priority_weights` may be words instead, which say that all are 1."""

    throughputs: Mapping[str, Mapping[str, object]]
    scale_factors: Mapping[str, int]
    cluster: Mapping[str, int]
    steps_remaining: Mapping[str, float]
    seconds_since_start: Mapping[str, float]
    priority_weights: object = "all 1"

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(key for key in self.throughputs if len(_JOB_NAME.findall(key)) < _PAIR)

    @property
    def pairs(self) -> dict[tuple[str, str], Mapping[str, object]]:
        """By the two jobs, as the key names them."""
        found = {key: tuple(_JOB_NAME.findall(key)) for key in self.throughputs}
        return {(names[0], names[1]): self.throughputs[key] for key, names in found.items() if len(names) == _PAIR}

    def weight(self, job: str) -> float:
        """Its priority weight."""
        return _non_negative(self.priority_weights.get(job, 1.0)) if isinstance(self.priority_weights, Mapping) else 1.0

    def rate(self, job: str, gpu_type: str) -> float:
        return _non_negative(self.throughputs[job].get(gpu_type, 0.0))

    def colocated_rates(self, pair: tuple[str, str], gpu_type: str) -> tuple[float, float]:
        """Of the first and the second on this type, 0 for both where there are none."""
        both = self.pairs[pair].get(gpu_type, (0.0, 0.0))
        if not isinstance(both, list | tuple) or len(both) != _PAIR:
            raise ValueError(f"expected two rates for {pair}")
        return _non_negative(both[0]), _non_negative(both[1])


@dataclass(frozen=True, slots=True)
class GavelAnswer:
    """What Gavel's policy gave: the objective's value, the least makespan in seconds where its search stops short of
    it, or the shares themselves, by job and type, where nothing is optimised."""

    objective: float | None = None
    exact_min_makespan_s: float | None = None
    allocation_exact: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GavelCase:
    """One case, and Gavel's answers by policy."""

    name: str
    inputs: GavelCaseInputs
    gavel: Mapping[str, GavelAnswer]


@dataclass(frozen=True, slots=True)
class _CaseFile:
    cases: tuple[GavelCase, ...]


def read_cases(path: Path) -> tuple[GavelCase, ...]:
    """All cases of the file. Raises ExperimentError."""
    try:
        cases = _converter().structure(json.loads(path.read_text(encoding="utf-8")), _CaseFile).cases
        for case in cases:
            _check_inputs(case.inputs)
    except (OSError, ValueError, KeyError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected cases of Gavel's policies: {error!r}") from error
    return cases


def _converter() -> Converter:
    """One that leaves values of any type as they are, to be looked at when they are used."""
    converter = Converter()
    converter.register_structure_hook_func(lambda wanted: wanted is object, lambda value, _: value)
    return converter


def _check_inputs(inputs: GavelCaseInputs) -> None:
    """Raises ValueError for numbers that cannot be, KeyError for a job of which something is missing."""
    jobs, gpu_types = inputs.jobs, tuple(inputs.cluster)
    if not jobs or min(inputs.cluster.values(), default=0) < 1:
        raise ValueError("there are no jobs, or no GPUs")
    for job in jobs:
        if inputs.scale_factors[job] < 1 or _non_negative(inputs.steps_remaining[job]) <= 0 or inputs.weight(job) <= 0:
            raise ValueError(f"job {job} has no width, no steps or no weight")
        if max(inputs.rate(job, kind) for kind in gpu_types) <= 0:
            raise ValueError(f"job {job} can run nowhere")
        _non_negative(inputs.seconds_since_start[job])
    for pair in inputs.pairs:
        if not {*pair} <= {*jobs}:
            raise ValueError(f"a pair of other jobs: {pair}")
        for kind in gpu_types:
            inputs.colocated_rates(pair, kind)


def _non_negative(value: object) -> float:
    """Raises ValueError unless it is a finite number of 0 or more."""
    if isinstance(value, int | float) and isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"expected a number of 0 or more, not {value!r}")


TOLERANCE: Final = 1e-4
"""Relative. The file has five digits, and solvers stop at about as many."""

_BISECTION_NOTE: Final = "Gavel bisects from 100 s up to within 5 %, so that its figure may be above the least."


def run_gavel_vectors(setup: ExperimentSetup) -> ExperimentResult:
    """A row for each case and policy of the file `vectors`, or of the data set. Raises ExperimentError."""
    file = setup.options.get("vectors")
    path = Path(file) if file else setup.data_file("gavel", "policy_vectors.json")
    rows = tuple(row for case in read_cases(path) for row in _case_rows(case))
    if not rows:
        raise ExperimentError(f"{path}: there is no policy in it that we have: known are {', '.join(GAVEL_POLICIES)}")
    return ExperimentResult("gavel-vectors", rows)


def case_problem(inputs: GavelCaseInputs) -> GavelProblem:
    """The case as a problem; jobs in the order of `inputs.jobs`, types in that of the cluster."""
    jobs, gpu_types = inputs.jobs, tuple(inputs.cluster)
    problem = replace(
        GavelProblem.of(
            np.array([inputs.cluster[kind] for kind in gpu_types], dtype=np.float64),
            np.array([[inputs.rate(job, kind) for kind in gpu_types] for job in jobs]),
            np.array([inputs.scale_factors[job] for job in jobs], dtype=np.float64),
        ),
        remaining=np.array([inputs.steps_remaining[job] for job in jobs], dtype=np.float64),
        elapsed=np.array([inputs.seconds_since_start[job] for job in jobs], dtype=np.float64),
        weights=np.array([inputs.weight(job) for job in jobs], dtype=np.float64),
    )
    if not inputs.pairs:
        return problem
    colocated = np.zeros((len(jobs), len(jobs), len(gpu_types)))
    for first, second in inputs.pairs:
        a, b = jobs.index(first), jobs.index(second)
        for at, kind in enumerate(gpu_types):
            colocated[a, b, at], colocated[b, a, at] = inputs.colocated_rates((first, second), kind)
    return replace(problem, colocated_rates=colocated)


def _case_rows(case: GavelCase) -> Iterator[FigureRow]:
    problem, gpu_types = case_problem(case.inputs), tuple(case.inputs.cluster)
    for name, theirs in case.gavel.items():
        if name not in GAVEL_POLICIES:
            continue
        fractions = GAVEL_POLICIES[name].time_fractions(problem, gpu_types)
        metric = f"{case.name}: {name}"
        if theirs.exact_min_makespan_s is not None:
            yield FigureRow(
                metric,
                "s",
                fractions.objective_value,
                None,
                theirs.exact_min_makespan_s,
                TOLERANCE,
                note=_BISECTION_NOTE,
            )
        elif theirs.objective is not None and GAVEL_POLICIES[name].objective is makespan:
            yield FigureRow(
                metric,
                "s",
                fractions.objective_value,
                None,
                theirs.objective,
                TOLERANCE,
                Bound.AT_MOST,
                note=_BISECTION_NOTE,
            )
        elif theirs.objective is not None:
            yield FigureRow(metric, "", fractions.objective_value, None, theirs.objective, TOLERANCE)
        elif theirs.allocation_exact:
            yield _allocation_row(metric, case.inputs, theirs, fractions)


def _allocation_row(metric: str, inputs: GavelCaseInputs, answer: GavelAnswer, fractions: TimeFractions) -> FigureRow:
    """Of shares without an objective: GPUs in use, less those that are in use otherwise than in theirs."""
    allocation = answer.allocation_exact
    expected = np.array([[allocation.get(job, {}).get(kind, 0.0) for kind in inputs.cluster] for job in inputs.jobs])
    widths = np.array([[inputs.scale_factors[job]] for job in inputs.jobs])
    used = float((expected * widths).sum())
    return FigureRow(
        metric, "GPUs", used - float((np.abs(expected - fractions.single) * widths).sum()), None, used, TOLERANCE
    )
