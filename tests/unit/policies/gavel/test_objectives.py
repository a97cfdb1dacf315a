"""Gavel's programs: optima by hand, and properties of every answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.optimize import linprog

from slurmsched.arrays import Floats
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.objectives import (
    GAVEL_POLICIES,
    finish_time_fairness,
    first_in_first_out,
    least_attained_service,
    makespan,
    throughput,
)
from slurmsched.policies.gavel.problem import GavelProblem, TimeFractions, equal_time_fractions


def problem(gpus: list[int], rates: list[list[float]], widths: list[int] | None = None) -> GavelProblem:
    known = np.array(rates)
    return GavelProblem.of(np.array(gpus, dtype=float), known, np.array(widths or [1] * len(rates), dtype=float))


TWO = problem([1, 1], [[4, 1], [2, 1]])
"""The first job gains more from the fast type."""


def test_fairness_gives_the_fast_type_to_who_gains_most_from_it_until_all_are_level() -> None:
    found = least_attained_service(TWO)
    fair = np.array([2.5, 1.5])
    assert found.effective_rates(TWO) / fair == pytest.approx([found.objective_value] * 2, rel=1e-4)
    assert found.single[0, 0] > found.single[1, 0]


def test_blind_fairness_divides_every_type_evenly() -> None:
    found = least_attained_service(TWO.blind())
    assert found.objective_value == pytest.approx(1.0)
    assert found.single == pytest.approx(np.full((2, 2), 0.5), abs=1e-3)


def test_the_makespan_is_that_of_the_last_job() -> None:
    found = makespan(replace(TWO, remaining=np.array([400.0, 100.0])))
    assert found.objective_value == pytest.approx(100.0)


def test_the_most_throughput_starves_who_is_slow() -> None:
    found = throughput(problem([1], [[4], [2]]))
    assert found.objective_value == pytest.approx(4.0)
    assert found.single[:, 0] == pytest.approx([1, 0], abs=1e-4)


def test_finish_time_fairness_favours_who_has_waited() -> None:
    waited = replace(TWO, rates=np.ones((2, 2)), remaining=np.full(2, 100.0), elapsed=np.array([0.0, 50.0]))
    rates = finish_time_fairness(replace(waited, gpus=np.array([0.5, 0.5]))).effective_rates(waited)
    assert rates[1] > rates[0]


def test_first_in_first_out_stops_at_the_first_that_does_not_fit() -> None:
    found = first_in_first_out(problem([2, 1], [[1, 2], [1, 3], [3, 1], [1, 1]], [1, 1, 2, 1]))
    assert found.single.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0]]


def test_two_jobs_on_a_gpu_where_that_is_more_than_taking_turns() -> None:
    packed = replace(
        problem([1], [[10.0], [10.0]]),
        colocated_rates=np.full((2, 2, 1), 8.0),
    )
    found = least_attained_service(packed)
    assert found.objective_value == pytest.approx(0.8)
    assert found.pair.tolist() == [[pytest.approx(1.0, abs=1e-3)]]
    assert (found.first.tolist(), found.second.tolist()) == ([0], [1])


def test_jobs_of_unequal_width_never_share() -> None:
    packed = replace(problem([2], [[10.0], [10.0]], [1, 2]), colocated_rates=np.full((2, 2, 1), 10.0))
    assert len(least_attained_service(packed).first) == 0


def test_a_job_that_can_run_nowhere_is_named_as_the_mistake() -> None:
    with pytest.raises(PolicyError, match="can run on no GPU type"):
        least_attained_service(problem([1, 1], [[1, 1], [0, 0]]))


def test_equal_shares_leave_nobody_more_time_than_there_is() -> None:
    found = equal_time_fractions(problem([8, 4], [[1, 1], [1, 1]], [1, 4]))
    assert found.single.tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3)], [1.0 / 1.5, 0.5 / 1.5]]


@some.composite
def problems(draw: some.DrawFn) -> GavelProblem:
    """One to seven jobs, some of them alike, on one to three types; every job runs somewhere."""
    types = draw(some.integers(1, 3))
    speeds = some.sampled_from((0.0, 0.5, 1.0, 3.0, 10.0))
    kinds = draw(some.lists(some.lists(speeds, min_size=types, max_size=types).filter(any), min_size=1, max_size=3))
    of = draw(some.lists(some.integers(0, len(kinds) - 1), min_size=1, max_size=7))
    width = draw(some.lists(some.sampled_from((1, 1, 2)), min_size=len(kinds), max_size=len(kinds)))
    gpus = draw(some.lists(some.integers(1, 5), min_size=types, max_size=types))
    found = problem(gpus, [kinds[kind] for kind in of], [width[kind] for kind in of])
    steps = draw(some.lists(some.sampled_from((1.0, 50.0, 3000.0)), min_size=len(of), max_size=len(of)))
    waited = draw(some.lists(some.sampled_from((0.0, 10.0, 500.0)), min_size=len(of), max_size=len(of)))
    found = replace(found, remaining=np.array(steps), elapsed=np.array(waited), job_types=np.array(of))
    if not draw(some.booleans()):
        return found
    kept = draw(some.sampled_from((0.4, 0.7, 1.0)))
    alone = np.array(kinds)
    return replace(found, colocated_rates=np.repeat((alone * kept)[:, None, :], len(kinds), axis=1))


def feasible(asked: GavelProblem, found: TimeFractions) -> None:
    time, slack = found.single.sum(axis=1), 1e-6
    np.add.at(time, found.first, found.pair.sum(axis=1))
    np.add.at(time, found.second, found.pair.sum(axis=1))
    used = (found.single * asked.widths[:, None]).sum(axis=0)
    used += (found.pair * asked.widths[found.first][:, None]).sum(axis=0)
    assert found.single.min() >= 0
    assert time.max() <= 1 + slack
    assert (used <= asked.gpus + slack).all()


@settings(max_examples=60, deadline=None)
@given(problems(), some.sampled_from(sorted(GAVEL_POLICIES)))
def test_no_time_and_no_gpu_is_given_twice(asked: GavelProblem, name: str) -> None:
    feasible(asked, GAVEL_POLICIES[name].time_fractions(asked, ["v100", "p100", "k80"][: len(asked.gpus)]))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_jobs_that_are_alike_get_like_shares_and_the_optimum_is_that_of_single_jobs(asked: GavelProblem) -> None:
    asked = replace(asked, colocated_rates=np.zeros((0, 0, 0)))
    worth = asked.widths / (asked.rates @ (asked.gpus / asked.gpus.sum()))
    found = least_attained_service(asked)
    assert found.objective_value == pytest.approx(job_by_job(asked, worth), rel=1e-5)
    assert (found.effective_rates(asked) * worth).min() == pytest.approx(found.objective_value, rel=1e-4)
    for kind in set(asked.job_types.tolist()):
        alike = found.single[asked.job_types == kind]
        assert alike == pytest.approx(np.broadcast_to(alike[0], alike.shape))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_nobody_is_later_than_the_least_rho(asked: GavelProblem) -> None:
    found = finish_time_fairness(asked)
    alone = asked.isolated_time + asked.remaining / equal_time_fractions(asked).effective_rates(asked)
    rho = (asked.elapsed + asked.remaining / found.effective_rates(asked)) / alone
    assert rho.max() == pytest.approx(found.objective_value, rel=1e-4)


def job_by_job(asked: GavelProblem, worth: Floats) -> float:
    """The max-min program with a row for each job and dense matrices: what it is held against."""
    jobs, types = asked.rates.shape
    rows, limits = [], []
    for job in range(jobs):
        level, time = np.zeros((jobs, types)), np.zeros((jobs, types))
        level[job], time[job] = -asked.rates[job] * worth[job], 1.0
        rows += [np.append(level, 1.0), np.append(time, 0.0)]
        limits += [0.0, 1.0]
    for kind in range(types):
        room = np.zeros((jobs, types))
        room[:, kind] = asked.widths
        rows.append(np.append(room, 0.0))
        limits.append(asked.gpus[kind])
    cost = np.append(np.zeros(jobs * types), -1.0)
    return float(linprog(cost, A_ub=np.array(rows), b_ub=limits).x[-1])
