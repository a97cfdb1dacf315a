"""The pooled integer program against the program per job, and against trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.optimize import Bounds, LinearConstraint, milp

from slurmsched.experiments.synergy.opt import JobClass, PooledOpt, maximise_throughput
from slurmsched.policies.errors import PolicyError

HUNGRY = JobClass(2, (3, 6, 12), (60, 60, 120), (1.0, 1.8, 2.9), 1.0)
FRUGAL = JobClass(2, (1, 3, 6), (20, 60, 60), (1.0, 1.0, 1.0), 1.0)


def test_the_hungry_get_what_the_frugal_leave() -> None:
    assert maximise_throughput([HUNGRY, FRUGAL], 20, 500) == ((0, 1, 1), (2, 0, 0))


def test_where_not_even_the_fair_speeds_fit_it_is_an_error() -> None:
    with pytest.raises(PolicyError, match="no allocation gives every job its fair speed"):
        maximise_throughput([HUNGRY], 5, 500)


def test_no_jobs_need_nothing() -> None:
    assert maximise_throughput([], 24, 500) == ()


def test_answers_are_remembered_and_the_same() -> None:
    pooled = PooledOpt(20, 500)
    assert pooled.maximise_throughput([HUNGRY, FRUGAL]) is pooled.maximise_throughput([HUNGRY, FRUGAL])


points = some.lists(
    some.tuples(some.integers(1, 12), some.integers(1, 12), some.integers(1, 9)), min_size=1, max_size=4
)


@some.composite
def kinds(draw: some.DrawFn) -> JobClass:
    chosen = draw(points)
    cpus, memory, speed = zip(*chosen, strict=True)
    return JobClass(draw(some.integers(1, 2)), cpus, memory, speed, fair=min(speed))


def brute(questions: list[JobClass], cpus: float, memory: float) -> float | None:
    """The best total speed over every choice for every single job."""
    each = [range(len(kind.speed)) for kind in questions for _ in range(kind.count)]
    owners = [kind for kind in questions for _ in range(kind.count)]
    best = None
    for choice in product(*each):
        chosen = list(zip(owners, choice, strict=True))
        fits = sum(k.cpus[p] for k, p in chosen) <= cpus and sum(k.memory[p] for k, p in chosen) <= memory
        if fits and all(k.speed[p] >= k.fair for k, p in chosen):
            best = max(best or 0.0, sum(k.speed[p] for k, p in chosen))
    return best


@settings(max_examples=60, deadline=None)
@given(some.lists(kinds(), min_size=1, max_size=3), some.integers(1, 40), some.integers(1, 40))
def test_it_is_the_best_there_is(questions: list[JobClass], cpus: int, memory: int) -> None:
    best = brute(questions, cpus, memory)
    if best is None:
        with pytest.raises(PolicyError):
            maximise_throughput(questions, cpus, memory)
        return
    counts = maximise_throughput(questions, cpus, memory)
    total = sum(n * kind.speed[p] for kind, row in zip(questions, counts, strict=True) for p, n in enumerate(row))
    assert total == pytest.approx(best)
    assert [sum(row) for row in counts] == [kind.count for kind in questions]


def test_counting_alike_jobs_loses_nothing_against_a_variable_for_each() -> None:
    random = np.random.default_rng(7)
    questions = [
        JobClass(int(random.integers(2, 6)), (1, 3, 6, 9, 12), (20, 60, 60, 60, 120),
             tuple(float(s) for s in np.sort(random.uniform(0.2, 3, 5))), 0.2)
        for _ in range(6)
    ]  # fmt: skip
    counts = maximise_throughput(questions, 90, 1500)
    total = sum(n * kind.speed[p] for kind, row in zip(questions, counts, strict=True) for p, n in enumerate(row))
    jobs = [kind for kind in questions for _ in range(kind.count)]
    columns = [(job, p) for job, kind in enumerate(jobs) for p in range(5)]
    once = np.zeros((len(jobs), len(columns)))
    for column, (job, _) in enumerate(columns):
        once[job, column] = 1
    answer = milp(
        [-jobs[job].speed[p] for job, p in columns],
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
        constraints=(
            LinearConstraint(once, 1, 1),
            LinearConstraint(np.array([[jobs[j].cpus[p] for j, p in columns], [jobs[j].memory[p] for j, p in columns]]),
                             -np.inf, (90, 1500)),
        ),
    )  # fmt: skip
    assert total == pytest.approx(-answer.fun)
