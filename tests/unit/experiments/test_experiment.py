"""When a measured figure holds, and what an experiment may be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.experiments.experiment import (
    Bound,
    ExperimentError,
    ExperimentResult,
    ExperimentSetup,
    FigureRow,
    FigureVerdict,
)
from slurmsched.experiments.registry import EXPERIMENTS, run_experiment


@pytest.mark.parametrize(
    ("row", "ratio", "ok"),
    [
        pytest.param(FigureRow("m", "h", 11.0, 11.33, 11.0, 0.005), 1.0, True, id="held against the reference first"),
        pytest.param(FigureRow("m", "h", 11.0, 11.33, None, 0.005), 11.0 / 11.33, False, id="else against the paper"),
        pytest.param(FigureRow("m", "h", 11.0, 11.33, None, 0.03), 11.0 / 11.33, True, id="within the tolerance"),
        pytest.param(
            FigureRow("m", "s", 0.1, None, None, None, Bound.AT_MOST, limit=1.0), 0.1, True, id="less is as good"
        ),
        pytest.param(
            FigureRow("m", "s", 1.2, None, None, 0.1, Bound.AT_MOST, limit=1.0), 1.2, False, id="more is too much"
        ),
        pytest.param(
            FigureRow("m", "x", 0.5, 9.0, 7.0, 0.1, Bound.AT_LEAST, limit=1.0), 0.5, False, id="less than the limit"
        ),
        pytest.param(
            FigureRow("m", "x", 2.0, None, None, 0.1, Bound.AT_LEAST, limit=1.0), 2.0, True, id="more is as good"
        ),
        pytest.param(FigureRow("m", "x", 2.0, None, None, 0.1), None, False, id="nothing to hold it against"),
        pytest.param(FigureRow("m", "x", 2.0, bound=Bound.INFORMATIVE), None, True, id="only stated"),
        pytest.param(FigureRow("m", "x", 2.0, 0.0, None, 0.1), None, False, id="no ratio to nothing"),
    ],
)
def test_a_row_holds_or_not(row: FigureRow, ratio: float | None, ok: bool) -> None:
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.ok is ok


@pytest.mark.parametrize("bound", [Bound.EQUAL, Bound.AT_MOST, Bound.AT_LEAST])
def test_what_is_no_number_never_holds(bound: Bound) -> None:
    assert not FigureRow("m", "h", float("nan"), 1.0, None, 0.5, bound, limit=1.0).ok


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        pytest.param(FigureRow("m", "h", 1.0, 1.0, tolerance=0.0), FigureVerdict.HELD, id="it holds"),
        pytest.param(FigureRow("m", "h", 2.0, 1.0, tolerance=0.0), FigureVerdict.MISSED, id="it does not"),
        pytest.param(
            FigureRow("m", "h", 1.0, 1.0, bound=Bound.INFORMATIVE, note="other jobs"),
            FigureVerdict.NOT_HELD,
            id="only told",
        ),
        pytest.param(
            FigureRow("m", "h", 1.0, None, 1.0, bound=Bound.INFORMATIVE, note="n"),
            FigureVerdict.NOT_HELD,
            id="code's too",
        ),
        pytest.param(
            FigureRow("m", "h", 1.0, bound=Bound.INFORMATIVE, limit=1.0), FigureVerdict.MEASURED, id="our own limit"
        ),
    ],
)
def test_only_a_row_with_a_bound_counts_as_held(row: FigureRow, verdict: FigureVerdict) -> None:
    assert row.verdict is verdict
    assert ExperimentResult("e", (row,)).count(verdict) == 1


@pytest.mark.parametrize("bound", [Bound.AT_LEAST, Bound.AT_MOST])
def test_somebody_elses_figure_is_held_on_both_sides(bound: Bound) -> None:
    with pytest.raises(ValueError, match="a one-sided bound needs a limit"):
        FigureRow("m", "x", 2.0, 1.0, 1.0, 0.1, bound)


def test_a_published_figure_that_is_not_held_says_why() -> None:
    with pytest.raises(ValueError, match="does not say why"):
        FigureRow("m", "x", 2.0, 1.0, bound=Bound.INFORMATIVE)


def test_a_missing_data_file_is_named_with_the_option_that_mends_it(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"synergy/x\.csv is missing: set --data or SLURMSCHED_DATA"):
        ExperimentSetup(tmp_path).data_file("synergy", "x.csv")


def test_an_unknown_experiment_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ExperimentError, match="there is no experiment 'x'; experiments: synergy-static, synergy-replay"
    ):
        run_experiment("x", ExperimentSetup(tmp_path))


def test_an_option_of_another_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ExperimentError, match="synergy-static does not accept --order; it accepts no options of its own"
    ):
        run_experiment("synergy-static", ExperimentSetup(tmp_path, options={"order": "fifo"}))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_called(name: str) -> None:
    assert callable(EXPERIMENTS[name].load())
