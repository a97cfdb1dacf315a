"""When a measured figure holds, and what an experiment may be asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from slurmsched.experiments.experiment import (
    Bound,
    ExperimentError,
    ExperimentResult,
    ExperimentSetup,
    FigureRow,
    FigureVerdict,
    KeptCases,
    run_or_read,
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


@dataclass(frozen=True, slots=True)
class Case:
    """A run that leaves a mark in a folder, so that runs can be counted."""

    marks: Path
    number: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run measures."""

    seconds: float
    by_type: Mapping[str, tuple[float, ...]]


def measured(case: Case) -> Outcome:
    (case.marks / f"{case.number}-{os.urandom(8).hex()}").touch()
    if case.number < 0:
        raise ExperimentError("negative")
    return Outcome(0.1 * case.number, {"v100": (1 / 3, float("nan")), "k80": ()})


def scaled(case: Case, factor: float) -> float:
    return measured(case).seconds * factor


def unreadable(case: Case) -> Mapping[tuple[int, int], float]:
    return {(1, 2): measured(case).seconds}


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def runs_in(marks: Path) -> int:
    return len([*marks.iterdir()])


def test_a_kept_result_is_read_as_it_was_measured_with_its_mappings_in_order(tmp_path: Path, marks: Path) -> None:
    path = KeptCases(tmp_path, "now").path(measured, Case(marks))
    first, again = (run_or_read(measured, Case(marks), path) for _ in range(2))
    assert runs_in(marks) == 1
    assert repr(again) == repr(first)


@pytest.mark.parametrize(
    ("inputs", "run", "number"),
    [
        pytest.param("then", measured, 1, id="of another program or other data"),
        pytest.param("now", unreadable, 1, id="of another function"),
        pytest.param("now", measured, 2, id="of another configuration"),
        pytest.param("now", partial(scaled, factor=3.0), 1, id="with other bound arguments"),
    ],
)
def test_a_kept_result_is_of_these_inputs_only(
    tmp_path: Path, marks: Path, inputs: str, run: Callable[[Case], object], number: int
) -> None:
    kept = {
        KeptCases(tmp_path, "now").path(measured, Case(marks)),
        KeptCases(tmp_path, "now").path(partial(scaled, factor=2.0), Case(marks)),
    }
    assert KeptCases(tmp_path, inputs).path(run, Case(marks, number)) not in kept


def test_what_would_not_be_read_as_it_is_is_measured_each_time(tmp_path: Path, marks: Path) -> None:
    path = KeptCases(tmp_path, "now").path(unreadable, Case(marks))
    assert [run_or_read(unreadable, Case(marks), path) for _ in range(2)] == [{(1, 2): 0.1}] * 2
    assert runs_in(marks) == 2


def test_a_kept_result_that_is_damaged_is_named(tmp_path: Path, marks: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"seconds": ')
    with pytest.raises(ExperimentError, match=r"broken\.json: expected the result of .*; remove the file"):
        run_or_read(measured, Case(marks), path)


def test_an_experiment_that_was_stopped_goes_on_where_it_was(tmp_path: Path, marks: Path) -> None:
    setup = ExperimentSetup(None, cases=KeptCases(tmp_path / "kept", "now"))
    with pytest.raises(ExperimentError, match="negative"):
        setup.run_all(measured, [Case(marks, 1), Case(marks, 2), Case(marks, -1)], "running")
    whole = setup.run_all(measured, [Case(marks, 1), Case(marks, 2), Case(marks, 3)], "running")
    assert sorted(mark.name.rsplit("-", 1)[0] for mark in marks.iterdir()) == ["-1", "1", "2", "3"]
    assert [round(outcome.seconds, 9) for outcome in whole.values()] == [0.1, 0.2, 0.3]


def test_a_change_of_the_data_sets_is_another_input(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("1")
    before, again = (KeptCases.of_this_program(tmp_path, tmp_path) for _ in range(2))
    (tmp_path / "trace.csv").write_text("12")
    assert before == again != KeptCases.of_this_program(tmp_path, tmp_path)
