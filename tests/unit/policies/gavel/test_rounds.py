"""Gavel's books, picks and leases."""

from __future__ import annotations

import numpy as np
import pytest

from slurmsched.arrays import Floats
from slurmsched.policies.gavel.rounds import AllocationLedger, JobCombination, assign_workers, greedy_round


def books(shares: dict[str, list[float]], credit: float = 180.0) -> AllocationLedger:
    """Two types; everybody starts with the credit and the share said."""
    found = AllocationLedger(("v100", "k80"), credit)
    found.set_combinations([(job,) for job in shares])
    found.reset(100.0)
    found.set_targets({(job,): np.array(share) for job, share in shares.items()})
    return found


def priorities(of: AllocationLedger) -> Floats:
    return of.priorities(np.ones(of.target_fractions.shape, dtype=np.bool_))


def test_the_priority_is_the_share_over_the_part_of_time_had() -> None:
    kept = books({"a": [0.5, 0.0], "b": [0.5, 1.0]})
    kept.add_received(("a",), "v100", 360.0)
    assert priorities(kept) == pytest.approx(np.array([[0.5 / (540 / 720), 0], [0.5 / (180 / 720), 1.0 / 0.5]]))


def test_where_it_cannot_run_a_job_has_no_priority() -> None:
    kept = books({"a": [0.5, 0.5]})
    assert kept.priorities(np.array([[True, False]])).tolist() == [[0.5, 0.0]]


def test_a_newcomer_has_the_credit_but_no_share_until_shares_are_computed() -> None:
    kept = books({"a": [0.5, 0.5]})
    kept.set_combinations([("a",), ("b",)])
    assert list(kept.without_target()) == [("b",)]
    assert priorities(kept)[1].tolist() == [0.0, 0.0]
    assert kept.received[1].tolist() == [180.0, 180.0]
    assert kept.total_received.tolist() == [180.0, 180.0]


def test_what_was_promised_and_not_had_is_the_deficit() -> None:
    kept = books({"a": [0.5, 0.25], "b": [0.5, 0.0]})
    kept.add_received(("a",), "v100", 300.0)
    kept.reset(500.0)
    assert kept.deficit.tolist() == [[200.0 - 300.0, 100.0], [200.0, 0.0]]


def test_time_of_who_left_still_counts_as_time_that_all_had() -> None:
    kept = books({"a": [0.5, 0.5], "b": [0.5, 0.5]})
    kept.set_combinations([("b",)])
    kept.add_received(("a",), "k80", 360.0)
    assert kept.total_received.tolist() == [360.0, 720.0]


def test_the_highest_priority_is_picked_and_the_too_wide_are_passed_over() -> None:
    kept = books({"wide": [0.9, 0.0], "first": [1.0, 0.0], "last": [0.1, 0.0]})
    runs = np.ones((3, 2), dtype=np.bool_)
    chosen = greedy_round(kept, runs, np.array([2.0, 1.0, 1.0]), [2, 1], [0, 1])
    assert chosen == {0: [("first",), ("last",)], 1: []}


def test_gpus_go_to_jobs_without_a_share_rather_than_idle() -> None:
    kept = books({"a": [1.0, 0.0], "b": [1.0, 0.0]})
    chosen = greedy_round(kept, np.ones((2, 2), dtype=np.bool_), np.ones(2), [1, 1], [0, 1])
    assert chosen == {0: [("a",)], 1: [("b",)]}


def test_of_a_pair_and_its_jobs_one_is_picked() -> None:
    kept = AllocationLedger(("v100",), 180.0)
    kept.set_combinations([("a",), ("b",), ("a", "b")])
    kept.reset(0.0)
    kept.set_targets({("a",): np.array([0.1]), ("b",): np.array([0.1]), ("a", "b"): np.array([0.8])})
    chosen = greedy_round(kept, np.ones((3, 1), dtype=np.bool_), np.ones(3), [4], [0])
    assert chosen == {0: [("a", "b")]}


@pytest.mark.parametrize(
    ("widths", "before", "expected"),
    [
        pytest.param({("a",): 1}, {("a",): (2,)}, {("a",): (2,)}, id="a lease goes on"),
        pytest.param({("a",): 1, ("b",): 2}, {}, {("b",): (0, 1), ("a",): (2,)}, id="the widest sits first"),
        pytest.param(
            {("a",): 1, ("b",): 3},
            {("a",): (0,)},
            {("b",): (0, 1, 2), ("a",): (3,)},
            id="a wider newcomer ends a narrow lease",
        ),
        pytest.param(
            {("new",): 1, ("old",): 1},
            {("old",): (0,)},
            {("old",): (0,), ("new",): (1,)},
            id="of equals the lease first",
        ),
        pytest.param({("a",): 1}, {("a",): (9,)}, {("a",): (0,)}, id="workers of another type are no lease"),
    ],
)
def test_who_sits_where(
    widths: dict[JobCombination, int], before: dict[JobCombination, tuple[int, ...]], expected: object
) -> None:
    assert assign_workers(widths, range(4), before) == expected
