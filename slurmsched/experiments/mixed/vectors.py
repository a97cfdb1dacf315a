"""Gavel's programs on small cases: our optima beside those of its own policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, ExperimentError, Outcome, Row, Task
from slurmsched.experiments.mixed.cases import Case, Inputs, Theirs, read_cases
from slurmsched.policies.gavel import POLICIES, Problem, Shares
from slurmsched.policies.gavel.objectives import makespan

__all__ = ["problem_of_case", "vectors"]

TOLERANCE: Final = 1e-4
"""Relative. The file has five digits, and solvers stop at about as many."""

_BISECTED: Final = "Gavel bisects from 100 s up to within 5 %, so that its figure may be above the least."


def vectors(task: Task) -> Outcome:
    """A row for each case and policy of the file `vectors`, or of the data set. Raises ExperimentError."""
    said = task.options.get("vectors")
    path = Path(said) if said else task.file("gavel", "policy_vectors.json")
    rows = tuple(row for case in read_cases(path) for row in _rows(case))
    if not rows:
        raise ExperimentError(f"{path}: there is no policy in it that we have: known are {', '.join(POLICIES)}")
    return Outcome("gavel-vectors", rows)


def problem_of_case(inputs: Inputs) -> Problem:
    """The case as a problem; jobs in the order of `inputs.jobs`, types in that of the cluster."""
    jobs, types = inputs.jobs, tuple(inputs.cluster)
    problem = replace(
        Problem.of(
            np.array([inputs.cluster[kind] for kind in types], dtype=np.float64),
            np.array([[inputs.rate(job, kind) for kind in types] for job in jobs]),
            np.array([inputs.scale_factors[job] for job in jobs], dtype=np.float64),
        ),
        remaining=np.array([inputs.steps_remaining[job] for job in jobs], dtype=np.float64),
        elapsed=np.array([inputs.seconds_since_start[job] for job in jobs], dtype=np.float64),
        weights=np.array([inputs.weight(job) for job in jobs], dtype=np.float64),
    )
    if not inputs.pairs:
        return problem
    beside = np.zeros((len(jobs), len(jobs), len(types)))
    for first, second in inputs.pairs:
        a, b = jobs.index(first), jobs.index(second)
        for at, kind in enumerate(types):
            beside[a, b, at], beside[b, a, at] = inputs.rates_beside((first, second), kind)
    return replace(problem, beside=beside)


def _rows(case: Case) -> Iterator[Row]:
    problem, types = problem_of_case(case.inputs), tuple(case.inputs.cluster)
    for name, theirs in case.gavel.items():
        if name not in POLICIES:
            continue
        shares = POLICIES[name].shares(problem, types)
        metric = f"{case.name}: {name}"
        if theirs.exact_min_makespan_s is not None:
            yield Row(metric, "s", shares.level, None, theirs.exact_min_makespan_s, TOLERANCE, note=_BISECTED)
        elif theirs.objective is not None and POLICIES[name].objective is makespan:
            yield Row(metric, "s", shares.level, None, theirs.objective, TOLERANCE, Bound.AT_MOST, note=_BISECTED)
        elif theirs.objective is not None:
            yield Row(metric, "", shares.level, None, theirs.objective, TOLERANCE)
        elif theirs.allocation_exact:
            yield _entry_by_entry(metric, case.inputs, theirs, shares)


def _entry_by_entry(metric: str, inputs: Inputs, theirs: Theirs, shares: Shares) -> Row:
    """Of shares without an objective: GPUs in use, less those that are in use otherwise than in theirs."""
    said = theirs.allocation_exact
    expected = np.array([[said.get(job, {}).get(kind, 0.0) for kind in inputs.cluster] for job in inputs.jobs])
    widths = np.array([[inputs.scale_factors[job]] for job in inputs.jobs])
    used = float((expected * widths).sum())
    return Row(metric, "GPUs", used - float((np.abs(expected - shares.single) * widths).sum()), None, used, TOLERANCE)
