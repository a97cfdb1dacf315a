"""Numbers of copies, steps for them, and what is known of their speed."""

from __future__ import annotations

import pytest

from slurmsched.policies.hadare.job_tracker import (
    ForkedJob,
    JobTracker,
    TrackingError,
    assign_nodes,
    copy_ids,
    divide_steps,
    split_copy_id,
)
from slurmsched.policies.hadare.throughput import GpuSpec, ModelSpec, ThroughputEstimates, estimate_throughput

V100, K80 = GpuSpec(15.7, 16), GpuSpec(4.1, 12)


def test_copies_have_numbers_of_their_own() -> None:
    assert copy_ids(7, 3, 100) == (107, 207, 307)
    assert [split_copy_id(number, 100) for number in (7, 107, 307)] == [(7, 0), (7, 1), (7, 3)]


def test_a_parent_beyond_the_most_jobs_would_share_a_number_with_a_copy() -> None:
    with pytest.raises(TrackingError, match="jobs are numbered from 0 to 99"):
        copy_ids(100, 2, 100)


@pytest.mark.parametrize(
    ("steps", "rates", "expected"),
    [
        pytest.param(100, (3.0, 1.0, 1.0), (60, 20, 20), id="in proportion to throughput"),
        pytest.param(2, (5.0, 1.0), (2, 0), id="the last few steps to the fastest alone"),
        pytest.param(3, (2.0, 2.0, 0.1), (2, 1, 0), id="the last few steps to the two fastest"),
        pytest.param(10, (0.0, 1.0), (0, 10), id="nothing to a node that cannot run it"),
        pytest.param(0, (1.0, 1.0), (0, 0), id="nothing where nothing is left"),
    ],
)
def test_steps_are_dispatched(steps: int, rates: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert divide_steps(steps, rates) == expected


def test_steps_that_nobody_can_do_are_no_silent_loss() -> None:
    with pytest.raises(TrackingError, match="no copy of the job can run"):
        divide_steps(5, (0.0, 0.0))


def test_what_a_dead_copy_had_not_reported_is_leased_again() -> None:
    job = JobTracker(100).begin_round({1: 60, 2: 40})
    job = job.report(1, 1, 60).report(2, 1, 15).end_copy(2, 1)
    job = job.report(2, 1, 40).close_round()

    assert (job.aggregated, job.remaining) == (75, 25)


def test_a_report_of_an_older_round_counts_no_more() -> None:
    job = JobTracker(100).begin_round({1: 50}).report(1, 1, 20).close_round().begin_round({1: 50})

    assert job.report(1, 1, 50).close_round().aggregated == 20


def test_more_than_was_leased_does_not_count() -> None:
    assert JobTracker(100).begin_round({1: 10}).report(1, 1, 99).close_round().aggregated == 10


@pytest.mark.parametrize(
    ("open_round", "portions", "said"),
    [
        pytest.param(False, {1: 60, 2: 41}, "100 are left", id="more than are left"),
        pytest.param(True, {1: 1}, "still open", id="before the last round is closed"),
    ],
)
def test_steps_are_not_leased_twice(open_round: bool, portions: dict[int, int], said: str) -> None:
    job = JobTracker(100).begin_round({1: 10}) if open_round else JobTracker(100)

    with pytest.raises(TrackingError, match=said):
        job.begin_round(portions)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        pytest.param(50, {"short": {2: 50}, "long": {0: 6667, 1: 3333}}, id="the slowest that does it by itself"),
        pytest.param(100, {"short": {0: 100}, "long": {1: 5000, 2: 5000}}, id="the only one that does"),
        pytest.param(150, {"short": {0: 100, 1: 50}, "long": {2: 10_000}}, id="the two fastest together"),
    ],
)
def test_a_job_that_can_end_gets_only_the_nodes_it_needs(left: int, expected: dict[str, dict[int, int]]) -> None:
    short, long = ForkedJob("short", left, (1.0, 0.5, 0.5)), ForkedJob("long", 10_000, (1.0, 0.5, 0.5))

    assert assign_nodes([long, short], slot=120.0) == expected


def test_nodes_that_nobody_needs_help() -> None:
    assert assign_nodes([ForkedJob("only", 90, (1.0, 1.0, 1.0))], slot=360.0) == {"only": {0: 30, 1: 30, 2: 30}}


def test_an_estimate_follows_the_machine_and_the_model() -> None:
    small, large = ModelSpec(1, 1, 32), ModelSpec(2, 4, 32)

    assert estimate_throughput(small, V100) == pytest.approx(15.7 / 4 * 32)
    assert estimate_throughput(large, V100) == pytest.approx(estimate_throughput(small, V100) / 8)
    assert estimate_throughput(small, GpuSpec(15.7, 16, pcie_scaling=0.5)) == pytest.approx(
        estimate_throughput(small, V100) / 2
    )


def test_what_was_measured_replaces_the_estimate_and_scales_the_others() -> None:
    known = ThroughputEstimates({"a": 10.0, "b": 5.0}).with_measurement("a", 2.0)

    assert (known.rate_on("a"), known.rate_on("b"), known.rate_on("nowhere")) == (2.0, pytest.approx(1.0), 0.0)


def test_a_round_without_a_step_measures_nothing() -> None:
    assert ThroughputEstimates({"a": 10.0}).with_measurement("a", 0.0).rate_on("a") == 10.0
