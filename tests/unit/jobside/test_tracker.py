"""Steps of a forked job: divided to the last one, counted once, whoever is killed when."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

import slurmsched.jobside.forked_rounds
from slurmsched.jobside import Checkpoints, TrackerError
from slurmsched.jobside.forking import CopyState, ForkedJobTracker, ForkedRound, divide_steps
from tests.unit.jobside.killing import killed_at

WATCHED = {slurmsched.jobside.forked_rounds.__file__, __file__}
RATES = (2.0, 1.0, 0.5)


def mean(copies: Sequence[CopyState], target: Path) -> None:
    """States are numbers in text; theirs is the mean by steps."""
    steps = sum(copy.steps for copy in copies)
    target.write_text(repr(sum(float(copy.path.read_text()) * copy.steps for copy in copies) / steps))


def tracker(folder: Path, target: int = 70) -> ForkedJobTracker:
    return ForkedJobTracker(folder, target, mean)


def train(fork: ForkedRound, copy: int, steps: int) -> None:
    """A copy adds its number, and one, for each step; what it did before in this round stays in its folder."""
    begin = float(fork.state.read_text()) if fork.state else 0.0
    Checkpoints(fork.checkpoints(copy)).save(steps, lambda path: path.write_text(repr(begin + steps * (copy + 1))))


def test_a_job_in_rounds(tmp_path: Path) -> None:
    tracked = tracker(tmp_path)
    assert tracked.current() is None
    first = tracked.advance(RATES)
    assert (first.number, first.done, first.assigned, first.state, first.over) == (1, 0, (40, 20, 10), None, False)
    train(first, 0, 40)
    train(first, 1, 5)
    second = tracked.advance(RATES)
    assert (second.done, second.previous_steps, second.assigned) == (45, (40, 5, 0), (14, 7, 4))
    assert second.state is not None
    assert float(second.state.read_text()) == (40 * 40 + 10 * 5) / 45
    for copy, steps in enumerate(second.assigned):
        train(second, copy, steps)
    last = tracked.advance(RATES)
    assert (last.done, last.over, last.assigned) == (70, True, (0, 0, 0))
    assert tracked.advance(RATES) == last == tracker(tmp_path).current()


def test_a_round_in_which_nobody_did_a_step_goes_on_from_the_same_parameters(tmp_path: Path) -> None:
    tracked = tracker(tmp_path)
    train(tracked.advance(RATES), 0, 7)
    before = tracked.advance(RATES)
    after = tracked.advance(RATES)
    assert (before.done, after.done, after.number) == (7, 7, 3)
    assert before.state is not None
    assert after.state is not None
    assert before.state.read_text() == after.state.read_text()


def test_of_rounds_that_are_long_over_only_the_account_is_kept(tmp_path: Path) -> None:
    tracked = tracker(tmp_path)
    for _ in range(3):
        train(tracked.advance(RATES), 0, 5)
    (tmp_path / ".round-000002.elsewhere.17").mkdir()
    tracked.advance(RATES)
    kept = {path.name: sorted(file.name for file in path.iterdir()) for path in tmp_path.iterdir()}
    ours = ["copy-0", "ledger.json", "state"]
    assert kept == {
        "round-000001": ["ledger.json"],
        "round-000002": ["ledger.json"],
        "round-000003": ours,
        "round-000004": ["ledger.json", "state"],
    }


def test_a_round_that_somebody_else_has_ended_is_not_ended_again(tmp_path: Path) -> None:
    tracked = tracker(tmp_path)
    tracked.advance(RATES, expected_round=0)
    second = tracked.advance(RATES, expected_round=1, dispatch_number=7)
    assert (second.number, second.dispatch_number) == (2, 7)
    assert tracked.advance(RATES, expected_round=1, dispatch_number=8) == second


def test_what_a_copy_saves_after_its_round_is_over_counts_nowhere(tmp_path: Path) -> None:
    tracked = tracker(tmp_path)
    first = tracked.advance(RATES)
    train(first, 0, 10)
    tracked.advance(RATES)
    train(first, 1, 20)
    assert tracked.advance(RATES).done == 10


def test_a_copy_that_claims_more_than_it_was_given_is_not_counted(tmp_path: Path) -> None:
    tracked = tracker(tmp_path)
    train(tracked.advance(RATES), 2, 11)
    with pytest.raises(TrackerError, match="copy 2 claims 11 steps of 10"):
        tracked.advance(RATES)


def test_the_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    tracker(tmp_path).advance(RATES)
    with pytest.raises(TrackerError, match="another job"):
        tracker(tmp_path, target=71).current()


def test_a_kill_at_any_line_neither_loses_a_step_nor_counts_one_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    line = 0
    while True:
        tracked = tracker(tmp_path / str(line))
        first = tracked.advance(RATES)
        for copy, steps in enumerate((40, 5, 10)):
            train(first, copy, steps)
        killed = killed_at(line, lambda tracked=tracked: tracked.advance(RATES), WATCHED)  # type: ignore[misc]  # bound now
        current = tracked.current()
        assert current is not None
        if current.number == 1:
            current = tracked.advance(RATES)
        assert (current.number, current.done, current.previous_steps, sum(current.assigned)) == (2, 55, (40, 5, 10), 15)
        if not killed:
            break
        line += 1
    assert line > 30


@given(some.integers(0, 10**7), some.lists(some.floats(0, 1e6), min_size=1, max_size=12).filter(any))
def test_portions_sum_to_the_steps_and_are_fair_to_one(steps: int, rates: list[float]) -> None:
    given_out = divide_steps(steps, rates)
    assert sum(given_out) == steps
    whole = sum(rates)
    for portion, rate in zip(given_out, rates, strict=True):
        assert abs(portion - steps * rate / whole) <= 1 + 1e-6 * steps


@pytest.mark.parametrize("rates", [(), (0.0, 0.0), (1.0, -1.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_steps_cannot_be_divided_among_copies_without_speed(rates: tuple[float, ...]) -> None:
    with pytest.raises(TrackerError):
        divide_steps(10, rates)
