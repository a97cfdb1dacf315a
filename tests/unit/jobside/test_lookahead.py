"""Where copies begin a round, and what their schedules go by."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.jobside import TensorError
from slurmsched.jobside.forking import ForkedRound, look_ahead, momentum


def fork(folder: Path, *counted: int, number: int = 3, done: int = 0, given: tuple[int, ...] = ()) -> ForkedRound:
    return ForkedRound(folder / f"round-{number:06}", number, 100, done, given, counted)


@pytest.mark.parametrize(
    ("counted", "part"),
    [
        pytest.param((), 0.0, id="the first round"),
        pytest.param((0, 0), 0.0, id="nobody did a step"),
        pytest.param((9,), 0.0, id="one copy"),
        pytest.param((9, 0, 0), 0.0, id="one copy of three lived"),
        pytest.param((5, 5), 0.5, id="two equal ones"),
        pytest.param((4, 4, 4, 4), 0.75, id="four equal ones"),
        pytest.param((4, 2, 1), 1 - 21 / 49, id="three at three speeds"),
    ],
)
def test_the_momentum_is_that_of_as_many_equal_copies(tmp_path: Path, counted: tuple[int, ...], part: float) -> None:
    assert momentum(fork(tmp_path, *counted)) == pytest.approx(part)


@given(some.lists(some.integers(1, 1000), min_size=1, max_size=6), some.integers(0, 10_000))
def test_all_copies_come_to_the_jobs_end_together(given_out: list[int], done: int) -> None:
    halfway = fork(Path("rounds"), done=done, given=tuple(given_out))
    for copy, own in enumerate(given_out):
        assert halfway.reached(copy, 0) == done
        assert halfway.reached(copy, own) == pytest.approx(done + sum(given_out))


def test_a_copy_that_has_nothing_to_do_stands_where_the_round_began(tmp_path: Path) -> None:
    assert fork(tmp_path, done=30, given=(70, 0)).reached(1, 0) == 30


def test_parameters_go_beyond_their_mean_and_nothing_else_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")
    model = torch.nn.BatchNorm1d(2)
    (tmp_path / "round-000002").mkdir()
    torch.save({"model": model.state_dict()}, tmp_path / "round-000002" / "state")
    with torch.no_grad():
        model.weight += 1.0
        model.running_mean += 1.0
    look_ahead(fork(tmp_path, 5, 5), model=model)
    assert model.weight.tolist() == [2.5, 2.5]
    assert model.running_mean.tolist() == [1.0, 1.0]
    look_ahead(fork(tmp_path, 5, 0), model=model)
    look_ahead(fork(tmp_path, 5, 5, number=2), model=model)
    assert model.weight.tolist() == [2.5, 2.5], "one copy, or no round before"
    with pytest.raises(TensorError, match=r"has no net\.weight"):
        look_ahead(fork(tmp_path, 5, 5), net=model)
