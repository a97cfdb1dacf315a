"""Steps for copies, and what is known of their speed."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.experiments.mixed.replay_policies import ForkedJob, assign_nodes
from slurmsched.knowledge.estimation import GpuSpec, ModelSpec, ThroughputEstimates, estimate_throughput
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.hadare.policy import copies_needed, divide_steps

V100, K80 = GpuSpec(15.7, 16), GpuSpec(4.1, 12)


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
    with pytest.raises(PolicyError, match="no copy of the job can run"):
        divide_steps(5, (0.0, 0.0))


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


@given(st.integers(0, 400), st.lists(st.integers(0, 20), max_size=5), st.integers(1, 30), st.booleans())
def test_a_job_ends_on_as_few_of_its_nodes_as_can_be(steps: int, rates: list[int], slot: int, spare_fast: bool) -> None:
    """Held against every set of nodes: where one ends the job in time, the copies needed are no more than its size."""
    needed = copies_needed(steps, [float(rate) for rate in rates], slot, spare_fast=spare_fast)

    def ends(nodes: tuple[int, ...]) -> bool:
        return bool(nodes) and steps <= sum(slot * rates[node] for node in nodes)

    assert all(rates[node] for node in needed)
    sizes = [size for size in range(1, len(rates) + 1) for some in combinations(range(len(rates)), size) if ends(some)]
    if steps and sizes and ends(needed):
        assert len(needed) == min(sizes)
    if spare_fast and steps and sizes and min(sizes) == 1:
        assert rates[needed[0]] == min(rate for rate in rates if rate and steps <= slot * rate)
