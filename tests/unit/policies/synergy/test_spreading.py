"""The placement program splits few jobs, and types are chosen where they bring most."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.experiments.synergy.opt import (
    MixedJobClass,
    ResourceAmount,
    TypeChoice,
    count_split_jobs,
    maximise_mixed_in_turn,
    maximise_mixed_throughput,
    spread_jobs,
)
from slurmsched.policies.errors import PolicyError

SERVER = ResourceAmount(8, 24, 500)
demands = some.lists(
    some.builds(ResourceAmount, some.sampled_from([1, 1, 2, 4, 8]), some.integers(1, 24), some.integers(10, 400)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(demands, some.integers(1, 6))
def test_at_most_three_jobs_for_each_server_are_split(jobs: list[ResourceAmount], servers: int) -> None:
    """Theorem A.2, on every question that has an answer."""
    try:
        parts = spread_jobs(jobs, [SERVER] * servers)
    except PolicyError:
        whole = [sum(getattr(job, name) for job in jobs) for name in ("gpus", "cpus", "memory")]
        assert any(sum_ > servers * limit for sum_, limit in zip(whole, (8, 24, 500), strict=True))
        return
    assert count_split_jobs(parts) <= 3 * servers
    assert parts.min() >= -1e-9
    assert np.allclose(parts.sum(axis=0), 1)
    for name, limit in (("gpus", 8), ("cpus", 24), ("memory", 500)):
        assert (parts @ np.array([getattr(job, name) for job in jobs])).max() <= limit + 1e-6


def test_a_job_that_fits_nowhere_whole_is_split() -> None:
    parts = spread_jobs([ResourceAmount(6, 18, 300)] * 4, [SERVER] * 3)
    assert count_split_jobs(parts) >= 1


def kind(count: int, gpus: int, *choices: tuple[int, float, float, float], fair: float = 0.0) -> MixedJobClass:
    return MixedJobClass(count, gpus, tuple(TypeChoice(*choice) for choice in choices), fair)


def test_the_fast_type_goes_to_whom_it_brings_most() -> None:
    quick = kind(1, 8, (0, 24, 100, 5.0), (1, 24, 100, 1.0))
    level = kind(1, 8, (0, 24, 100, 1.2), (1, 24, 100, 1.0))
    assert maximise_mixed_throughput([quick, level], [SERVER, SERVER]) == ((1, 0), (0, 1))


def test_who_cannot_have_a_fair_speed_is_an_error() -> None:
    with pytest.raises(PolicyError, match="a job has no choice that is fast enough"):
        maximise_mixed_throughput([kind(1, 1, (0, 1, 1, 0.5), fair=1.0)], [SERVER])
    with pytest.raises(PolicyError, match="no allocation gives every job its fair speed"):
        maximise_mixed_throughput([kind(2, 8, (0, 1, 1, 1.0))], [SERVER])


def test_those_behind_get_what_is_left() -> None:
    wide, narrow = kind(1, 6, (0, 12, 100, 1.0)), kind(4, 1, (0, 3, 50, 1.0))
    assert maximise_mixed_in_turn([wide, narrow], [SERVER]) == (((1,),), ((2,),))


choices = some.lists(
    some.tuples(some.integers(0, 1), some.integers(1, 12), some.integers(1, 200), some.integers(1, 9)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(some.lists(some.tuples(some.sampled_from([1, 2, 4]), choices), min_size=1, max_size=4))
def test_it_is_the_best_there_is(asked: list[tuple[int, list[tuple[int, int, int, int]]]]) -> None:
    pools = [ResourceAmount(4, 12, 250), ResourceAmount(4, 12, 250)]
    kinds = [kind(1, gpus, *options) for gpus, options in asked]
    best = None
    for chosen in product(*(one.choices for one in kinds)):
        used = np.zeros((2, 3))
        for one, choice in zip(kinds, chosen, strict=True):
            used[choice.pool] += one.gpus, choice.cpus, choice.memory
        if (used <= (4, 12, 250)).all():
            best = max(best or 0.0, sum(choice.speed for choice in chosen))
    if best is None:
        with pytest.raises(PolicyError):
            maximise_mixed_throughput(kinds, pools)
        return
    counts = maximise_mixed_throughput(kinds, pools)
    total = sum(
        n * c.speed for row, one in zip(counts, kinds, strict=True) for n, c in zip(row, one.choices, strict=True)
    )
    assert total == pytest.approx(best)
