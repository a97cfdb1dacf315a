"""Few runs, and a matrix that is near what was measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from slurmsched.knowledge import load_synergy_profiles
from slurmsched.knowledge.optimistic_profiling import profile_cpus, profile_matrix, profiling_accuracy
from slurmsched.knowledge.speed import DatasetCache, fit_cache

DATA = os.environ.get("SLURMSCHED_DATA")
CPUS = tuple(float(count) for count in range(1, 25))
MEMORY = tuple(50_000.0 * size for size in range(1, 11))


def runs_for(curve: dict[float, float]) -> int:
    asked: list[float] = []

    def speed(cpus: float) -> float:
        asked.append(cpus)
        below = max(c for c in curve if c <= cpus)
        above = min((c for c in curve if c >= cpus), default=below)
        part = 0.0 if above == below else (cpus - below) / (above - below)
        return curve[below] + part * (curve[above] - curve[below])

    profile_cpus(speed, CPUS)
    return len(asked)


@pytest.mark.parametrize(
    ("curve", "most"),
    [
        pytest.param({1: 1.0, 24: 1.0}, 2, id="a flat job takes the two ends"),
        pytest.param({1: 0.5, 24: 12.0}, 3, id="a straight one takes the middle as well"),
        pytest.param({1: 0.4, 4: 1.15, 24: 1.15}, 7, id="one that saturates early is looked at below"),
        pytest.param({1: 0.3, 3: 1.0, 12: 2.9, 24: 2.9}, 10, id="a hungry one takes some more"),
    ],
)
def test_runs_are_spent_where_speed_changes(curve: dict[float, float], most: int) -> None:
    assert runs_for(curve) <= most


def test_storage_bounds_a_job_until_its_data_set_is_cached() -> None:
    cache = DatasetCache(1.2, 312_500.0)
    assert cache.speed_bound(62_500.0) == pytest.approx(1.5)
    assert cache.speed_bound(312_500.0) == float("inf")
    again = fit_cache((62_500.0, 1.5), (125_000.0, 2.0))
    assert again is not None
    assert (again.uncached_speed, again.dataset_memory) == pytest.approx((1.2, 312_500.0))
    assert fit_cache((1.0, 2.0), (2.0, 2.0)) is None


@given(
    some.floats(0.1, 1.0),
    some.floats(1.0, 5.0),
    some.sampled_from(CPUS[2:]),
    some.floats(0.3, 1.0),
    some.floats(150_000.0, 480_000.0),
)
@example(slow=0.921875, fast=1.0, saturates=3.0, uncached=1.0, dataset=150_000.0)
def test_a_job_that_is_what_the_model_says_is_found_within_three_percent(
    slow: float, fast: float, saturates: float, uncached: float, dataset: float
) -> None:
    """Linear in CPUs until it saturates, fed by a cache: whatever the numbers, the error stays small."""
    cache = DatasetCache(uncached, dataset)

    def speed(cpus: float, memory: float) -> float:
        part = min(1.0, (cpus - 1) / (saturates - 1))
        return min(slow + part * (fast - slow), cache.speed_bound(memory))

    found = profile_matrix(speed, CPUS, MEMORY)
    errors = [
        abs(found.matrix.speed_at(cpus, memory) - speed(cpus, memory)) / speed(cpus, memory)
        for cpus in CPUS
        for memory in MEMORY
    ]
    assert sum(errors) / len(errors) < 0.03
    assert len(found.runs) <= 15
    assert found.combinations == 240


@given(some.floats(0.1, 5.0), some.floats(0.1, 5.0))
def test_no_estimate_is_above_the_speed_at_full_memory(one: float, other: float) -> None:
    found = profile_matrix(lambda cpus, memory: one + other * cpus * memory / MEMORY[-1], CPUS, MEMORY)
    assert all(max(row) <= row[-1] + 1e-9 for row in found.matrix.speed)


@pytest.mark.skipif(not DATA, reason="SLURMSCHED_DATA names no folder of public data sets")
def test_the_published_matrices_take_about_eight_runs_each_and_come_out_within_three_percent() -> None:
    found = profiling_accuracy(load_synergy_profiles(Path(DATA or "") / "synergy" / "profiles.json")).values()
    assert sum(c.runs for c in found) / len(found) < 10
    assert all(c.mean_error < 0.03 for c in found), found
    assert {c.combinations for c in found} == {240}
