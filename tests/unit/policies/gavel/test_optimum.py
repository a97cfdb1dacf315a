"""Gavel's optima where all jobs differ, against a general solver of linear programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from slurmsched.arrays import Floats, Ints
from slurmsched.policies.gavel import program
from slurmsched.policies.gavel.objectives import Objective, finish_time_fairness, least_attained_service, makespan
from slurmsched.policies.gavel.problem import GavelProblem

SPEEDS = np.array([1.0, 0.55, 0.2])


def all_different(jobs: int, seed: int, packed: bool = False) -> GavelProblem:
    """Jobs of which no two have the same rates, on three types with one GPU for eight of them."""
    random = np.random.default_rng(seed)
    widths = np.ones(jobs) if packed else random.choice([1.0, 2.0, 4.0], size=jobs, p=[0.7, 0.2, 0.1])
    rates = SPEEDS * widths[:, None] * random.uniform(0.1, 90.0, (jobs, 1)) * random.uniform(0.8, 1.25, (jobs, 3))
    asked = GavelProblem.of(np.full(3, max(jobs // 24, 4.0)), rates, widths)
    asked = replace(asked, remaining=random.uniform(60, 4e5, jobs) * rates[:, 0], elapsed=random.uniform(0, 4e4, jobs))
    if packed:
        kept = np.maximum(random.uniform(-0.2, 0.9, (jobs, jobs, 3)), 0.0)
        asked = replace(asked, colocated_rates=rates[:, None, :] * kept)
    return asked


CASES = [
    pytest.param(least_attained_service, all_different(300, 1), id="fairness"),
    pytest.param(least_attained_service, all_different(40, 2, packed=True), id="fairness in pairs"),
    pytest.param(makespan, all_different(120, 3), id="makespan"),
    pytest.param(makespan, all_different(16, 4, packed=True), id="makespan in pairs"),
    pytest.param(finish_time_fairness, all_different(60, 5), id="finish-time fairness"),
]


@pytest.mark.parametrize(("objective", "asked"), CASES)
def test_where_all_jobs_differ_the_optimum_and_its_centre_are_those_of_a_general_solver(
    objective: Objective, asked: GavelProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Floats) -> Floats:
        raise AssertionError("the general solver was needed")

    with monkeypatch.context() as own:
        own.setattr(program, "_solve", refused)
        found = objective(asked)
    monkeypatch.setattr(program, "maximum", lambda *_: None)
    known = objective(asked)

    assert found.objective_value == pytest.approx(known.objective_value, rel=1e-7)
    assert found.single == pytest.approx(known.single, abs=1e-5)
    assert found.pair == pytest.approx(known.pair, abs=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_the_optimum_is_one_of_the_single_jobs(packed: bool) -> None:
    """The program of single jobs is made here from the problem alone."""
    asked = all_different(20, 6, packed=packed)
    worth = asked.widths / (asked.rates @ (asked.gpus / asked.gpus.sum()))

    assert least_attained_service(asked).objective_value == pytest.approx(_highest_level(asked, worth), rel=1e-6)


def _highest_level(asked: GavelProblem, worth: Floats) -> float:

    jobs, types = asked.rates.shape
    first, second = np.triu_indices(jobs if asked.packed else 0, k=1)
    columns: list[tuple[Ints, Floats, int]] = []
    for job in range(jobs):
        columns += [(np.array([job]), np.array([asked.rates[job, kind]]), kind) for kind in range(types)]
    for a, b in zip(first, second, strict=True):
        both = np.array([a, b])
        columns += [(both, asked.colocated_rates[both, both[::-1], kind], kind) for kind in range(types)]
    rows = np.zeros((2 * jobs + types, len(columns) + 1))
    rows[:jobs, -1] = 1.0
    for column, (members, rates, kind) in enumerate(columns):
        rows[members, column] = -worth[members] * rates
        rows[jobs + members, column] = 1.0
        rows[2 * jobs + kind, column] = asked.widths[members[0]]
    limits = np.concatenate([np.zeros(jobs), np.ones(jobs), asked.gpus])
    cost = np.zeros(len(columns) + 1)
    cost[-1] = -1.0
    return -float(linprog(cost, A_ub=rows, b_ub=limits).fun)
