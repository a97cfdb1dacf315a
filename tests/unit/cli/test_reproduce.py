"""What a person and a program see of an experiment."""

from __future__ import annotations

import json

import pytest

from slurmsched.cli import reproduce as command
from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from tests.unit.cli.conftest import Site

ROWS = (
    FigureRow("fifo tune makespan", "h", 11.0, 11.33, 11.0, 0.005),
    FigureRow("fifo tune cpu_s", "s", 0.08, None, 1.13, None, Bound.AT_MOST, note="A busy machine takes longer."),
    FigureRow("srtf tune mean JCT", "h", 3.2, 3.19, None, None, Bound.INFORMATIVE),
)
FAILED = FigureRow("fifo opt makespan", "h", 12.0, 11.01, 10.584, 0.005)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentSetup]:
    """Experiments that are over at once; what they were asked. `synergy-load` does not hold."""
    tasks: list[ExperimentSetup] = []

    def at_once(name: str, task: ExperimentSetup) -> ExperimentResult:
        tasks.append(task)
        return ExperimentResult(name, (*ROWS, FAILED) if name == "synergy-load" else ROWS)

    monkeypatch.setattr(command, "run", at_once)
    return tasks


def test_the_figures_stand_side_by_side_with_the_verdict_below(site: Site, asked: list[ExperimentSetup]) -> None:
    lines = site.lines("reproduce", "synergy-static", "--data", str(site.folder))
    assert lines[0].split() == ["FIGURE", "UNIT", "PAPER", "THEIRS", "OURS", "RATIO", "ASKED", "OK"]
    assert lines[1].split() == ["fifo", "tune", "makespan", "h", "11.33", "11", "11", "1", "±0.5%", "yes"]
    assert lines[3].split() == ["srtf", "tune", "mean", "JCT", "h", "3.19", "-", "3.2", "1.0031", "-"]
    assert lines[-1] == "synergy-static: 2 of 2 figures within bounds."
    assert "  A busy machine takes longer." in lines


def test_a_figure_that_does_not_hold_is_exit_status_1(site: Site, asked: list[ExperimentSetup]) -> None:
    result = site.run("reproduce", "synergy-load", "--data", str(site.folder), "--json")
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert (printed["experiment"], printed["ok"]) == ("synergy-load", False)
    assert [row["ok"] for row in printed["rows"]] == [True, True, True, False]
    assert set(printed["rows"][0]) >= {"metric", "unit", "published", "reference", "measured", "ratio", "tolerance"}


def test_seeds_and_options_reach_the_experiment(site: Site, asked: list[ExperimentSetup]) -> None:
    given = ("--seeds", "42..44,7", "--trace", "t.csv", "--order", "srtf", "--quick")
    site.lines("reproduce", "synergy-replay", "--data", str(site.folder), *given)
    assert (asked[0].seeds, asked[0].quick) == ((42, 43, 44, 7), True)
    assert asked[0].options == {"trace": "t.csv", "order": "srtf"}


@pytest.mark.parametrize("seeds", ["", "x", "5..1", "1..99999", "-3"])
def test_seeds_that_are_none_are_refused(site: Site, asked: list[ExperimentSetup], seeds: str) -> None:
    result = site.run("reproduce", "synergy-load", "--data", str(site.folder), "--seeds", seeds)
    assert result.exit_code == 2
    assert "is not a seed: write 42 or 42..44" in result.stderr


def test_without_data_the_option_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMSCHED_DATA", raising=False)
    result = site.run("reproduce", "synergy-static")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "the data sets are needed: give --data DIR" in result.stderr
