"""Compares the optima of our programs with those of Gavel's policies on the cases of `gavel/policy_vectors.json`.

The file is not trusted, so all its values are validated.
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
    """The inputs of a case.

    `throughputs` are steps per second by job and GPU type. A key with two jobs, such as `(0, 1)`, is a pair, with the
    rate of each beside the other. `cluster` has GPUs by type; `steps_remaining`, `seconds_since_start` and
    `scale_factors` (GPUs) are by job. `priority_weights` may be a text instead, if all weights are 1.
    """

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
        """Returns the rates of pairs by their two jobs, in the order of the key."""
        jobs_by_key = {key: tuple(_JOB_NAME.findall(key)) for key in self.throughputs}
        return {(jobs[0], jobs[1]): self.throughputs[key] for key, jobs in jobs_by_key.items() if len(jobs) == _PAIR}

    def weight(self, job: str) -> float:
        """Returns the job's priority weight, by default 1."""
        return _non_negative(self.priority_weights.get(job, 1.0)) if isinstance(self.priority_weights, Mapping) else 1.0

    def rate(self, job: str, gpu_type: str) -> float:
        return _non_negative(self.throughputs[job].get(gpu_type, 0.0))

    def colocated_rates(self, pair: tuple[str, str], gpu_type: str) -> tuple[float, float]:
        """Returns the rates of the first and the second job on this type, 0 if the pair has none."""
        both = self.pairs[pair].get(gpu_type, (0.0, 0.0))
        if not isinstance(both, list | tuple) or len(both) != _PAIR:
            raise ValueError(f"expected two rates for {pair}")
        return _non_negative(both[0]), _non_negative(both[1])


@dataclass(frozen=True, slots=True)
class GavelAnswer:
    """The result of Gavel's policy.

    It is the objective's value; or the exact least makespan in seconds, if Gavel's search stops before it; or, for
    policies without an objective, the time fractions by job and GPU type.
    """

    objective: float | None = None
    exact_min_makespan_s: float | None = None
    allocation_exact: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GavelCase:
    """One case, and Gavel's results by policy."""

    name: str
    inputs: GavelCaseInputs
    gavel: Mapping[str, GavelAnswer]


@dataclass(frozen=True, slots=True)
class _CaseFile:
    cases: tuple[GavelCase, ...]


def read_cases(path: Path) -> tuple[GavelCase, ...]:
    """Reads the cases of the file. Raises ExperimentError."""
    try:
        cases = _converter().structure(json.loads(path.read_text(encoding="utf-8")), _CaseFile).cases
        for case in cases:
            _check_inputs(case.inputs)
    except (OSError, ValueError, KeyError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected cases of Gavel's policies: {error!r}") from error
    return cases


def _converter() -> Converter:
    """Returns a converter that leaves values of type `object` unchanged; they are validated when used."""
    converter = Converter()
    converter.register_structure_hook_func(lambda wanted: wanted is object, lambda value, _: value)
    return converter


def _check_inputs(inputs: GavelCaseInputs) -> None:
    """Raises ValueError for impossible numbers, and KeyError for a job with missing values."""
    jobs, gpu_types = inputs.jobs, tuple(inputs.cluster)
    if not jobs or min(inputs.cluster.values(), default=0) < 1:
        raise ValueError("there are no jobs, or no GPUs")
    for job in jobs:
        if inputs.scale_factors[job] < 1 or _non_negative(inputs.steps_remaining[job]) <= 0 or inputs.weight(job) <= 0:
            raise ValueError(f"job {job} has no GPUs, no steps or no weight")
        if max(inputs.rate(job, kind) for kind in gpu_types) <= 0:
            raise ValueError(f"job {job} can run nowhere")
        _non_negative(inputs.seconds_since_start[job])
    for pair in inputs.pairs:
        if not {*pair} <= {*jobs}:
            raise ValueError(f"the pair {pair} has an unknown job")
        for kind in gpu_types:
            inputs.colocated_rates(pair, kind)


def _non_negative(value: object) -> float:
    """Returns the value as a float. Raises ValueError unless it is a finite number of at least 0."""
    if isinstance(value, int | float) and isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"expected a number of at least 0, not {value!r}")


TOLERANCE: Final = 1e-4
"""Relative tolerance. The file has five digits, and solvers are about as exact."""

_BISECTION_NOTE: Final = "Gavel bisects from 100 s to within 5 %, so that its figure may be above the minimum."


def run_gavel_vectors(setup: ExperimentSetup) -> ExperimentResult:
    """Compares each case and policy of option `vectors`, a file, or of the data set. Raises ExperimentError."""
    file = setup.options.get("vectors")
    path = Path(file) if file else setup.data_file("gavel", "policy_vectors.json")
    rows = tuple(row for case in read_cases(path) for row in _case_rows(case))
    if not rows:
        raise ExperimentError(f"{path} has none of our policies: {', '.join(GAVEL_POLICIES)}")
    return ExperimentResult("gavel-vectors", rows)


def case_problem(inputs: GavelCaseInputs) -> GavelProblem:
    """Returns the case as a problem, with jobs in the order of `inputs.jobs` and types in that of `inputs.cluster`."""
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
        for index, kind in enumerate(gpu_types):
            colocated[a, b, index], colocated[b, a, index] = inputs.colocated_rates((first, second), kind)
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
                _BISECTION_NOTE,
                theirs.objective,
            )
        elif theirs.objective is not None:
            yield FigureRow(metric, "", fractions.objective_value, None, theirs.objective, TOLERANCE)
        elif theirs.allocation_exact:
            yield _allocation_row(metric, case.inputs, theirs, fractions)


def _allocation_row(metric: str, inputs: GavelCaseInputs, answer: GavelAnswer, fractions: TimeFractions) -> FigureRow:
    """Compares time fractions without an objective: GPUs in use, less the difference from Gavel's allocation."""
    allocation = answer.allocation_exact
    expected = np.array([[allocation.get(job, {}).get(kind, 0.0) for kind in inputs.cluster] for job in inputs.jobs])
    widths = np.array([[inputs.scale_factors[job]] for job in inputs.jobs])
    used = float((expected * widths).sum())
    return FigureRow(
        metric, "GPUs", used - float((np.abs(expected - fractions.single) * widths).sum()), None, used, TOLERANCE
    )
