"""What a person and a program see of an experiment."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmsched.cli import reproduce as command
from slurmsched.experiments import figures
from slurmsched.experiments.experiment import (
    DEFAULT_SEEDS,
    Bound,
    ExperimentResult,
    ExperimentSetup,
    FigureRow,
    KeptCases,
    MixedColumn,
    PromiseRow,
)
from tests.unit.cli.conftest import Site

ROWS = (
    FigureRow("fifo tune makespan", "h", 11.0, 11.33, 11.0, 0.005),
    FigureRow("fifo tune cpu_s", "s", 0.08, None, 1.13, None, Bound.AT_MOST, "A busy machine takes longer.", 0.5),
    FigureRow("srtf tune mean JCT", "h", 3.2, 3.19, None, None, Bound.INFORMATIVE, "Other jobs."),
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
    assert lines[-2:] == [
        "synergy-static: 1 figure not held, as the notes say.",
        "synergy-static: 2 of 2 figures within bounds.",
    ]
    assert "  A busy machine takes longer." in lines


def test_a_figure_that_does_not_hold_is_exit_status_1(site: Site, asked: list[ExperimentSetup]) -> None:
    result = site.run("reproduce", "synergy-load", "--data", str(site.folder), "--json")
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert (printed["experiment"], printed["ok"]) == ("synergy-load", False)
    assert [row["ok"] for row in printed["rows"]] == [True, True, True, False]
    assert [row["verdict"] for row in printed["rows"]] == ["held", "held", "not held", "missed"]
    assert set(printed["rows"][0]) >= {"metric", "unit", "published", "reference", "measured", "ratio", "tolerance"}


KEPT = PromiseRow("m", "x", 0.95, tolerance=0.1, note="slide 6", policy="gandiva-fair", mean=1.0, limit=1.0)
PROMISES = (
    replace(KEPT, scenario="a gang", promise="share", measured=0.25),
    replace(KEPT, scenario="equal jobs", promise="share"),
    replace(KEPT, scenario="equal jobs", promise="wait", bound=Bound.INFORMATIVE, note=""),
)


def test_promises_are_listed_by_policy_and_scenario_with_their_sources(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", lambda name, _: ExperimentResult(name, PROMISES))
    result = site.run("reproduce", "site-promises")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["POLICY", "SCENARIO", "PROMISE", "UNIT", "MEAN", "WORST", "ASKED", "KEPT"]
    assert [line.split()[-4:] for line in lines[1:3]] == [["1", "0.25", "1±0.1", "NO"], ["1", "0.95", "1±0.1", "yes"]]
    assert lines[3].split()[-3:] == ["1", "0.95", "-"]
    assert "  share: slide 6" in lines
    assert lines[-1] == "site-promises: 1 of 2 promises kept."
    assert result.exit_code == 1
    printed = json.loads(site.run("reproduce", "site-promises", "--json").stdout)
    assert printed["rows"][0] | {"scenario": "a gang", "mean": 1.0, "limit": 1.0, "ok": False} == printed["rows"][0]


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


def test_without_seeds_there_are_three(site: Site, asked: list[ExperimentSetup]) -> None:
    site.lines("reproduce", "synergy-static", "--data", str(site.folder))
    assert asked[0].seeds == DEFAULT_SEEDS == (42, 43, 44)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Parts that are measured at once: their names, and whether quickly. `synergy-load` does not hold."""
    calls: list[tuple[str, bool]] = []

    def at_once(name: str, setup: ExperimentSetup) -> ExperimentResult:
        calls.append((" ".join((name, *setup.options.values())), setup.quick))
        return ExperimentResult(name, (*ROWS, FAILED) if name == "synergy-load" else ROWS)

    monkeypatch.setattr(figures, "run_experiment", at_once)
    monkeypatch.setattr(command, "run", at_once)
    return calls


def test_all_measures_what_is_missing_and_nothing_twice(site: Site, measured: list[tuple[str, bool]]) -> None:
    page = str(site.folder / "figures.md")
    everything = [part.name for part in figures.figure_parts()]
    assert site.run("reproduce", "--all", "--quick", "--page", page).exit_code == 1
    assert measured == [(name, True) for name in everything]
    site.run("reproduce", "--all", "--quick", "--page", page)
    assert len(measured) == len(everything), "it is kept"
    site.lines("reproduce", "fgd-variant", "--variant", "gpuspec10", "--keep", "--page", page)
    assert measured[len(everything) :] == [("fgd-variant gpuspec10", False)]
    site.run("reproduce", "--all", "--page", page)
    again = [name for name in everything if name != "fgd-variant gpuspec10"]
    assert measured[len(everything) + 1 :] == [(name, False) for name in again], "the whole one is kept"


def test_the_page_tells_misses_first_and_which_rows_are_of_a_quick_run(
    site: Site, measured: list[tuple[str, bool]]
) -> None:
    page = site.folder / "figures.md"
    site.run("reproduce", "synergy-load", "--keep", "--page", str(page), "--seeds", "1")
    site.run("reproduce", "--all", "--quick", "--page", str(page))
    text = page.read_text()
    lines = [line for line in text.splitlines() if line.startswith("| Synergy | synergy-load |")]
    assert lines[0].startswith("| Synergy | synergy-load | whole | 2 | 1 | 1 | 0 |")
    assert "`synsched reproduce synergy-load --seeds 1`" in lines[0]
    assert [line.split(" | ")[8] for line in lines[1:]] == ["**MISSED**", "**not held**", "**held**", "**held**"]
    assert "| Synergy | synergy-ratios | **QUICK** | 2 | 0 | 1 | 0 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| Synergy | synergy-ratios | **QUICK** ")]
    assert len(rows) == 1 + len(ROWS), "each row says that it is quick"


def test_a_quick_run_does_not_replace_a_whole_one(site: Site, measured: list[tuple[str, bool]]) -> None:
    page = str(site.folder / "figures.md")
    site.lines("reproduce", "hadar-static", "--keep", "--page", page)
    result = site.run("reproduce", "hadar-static", "--quick", "--keep", "--page", page)
    assert (result.exit_code, "has the rows of a whole run" in result.stderr) == (2, True)
    assert measured == [("hadar-static", False)], "it is refused before hours of work"


@pytest.mark.parametrize(
    "given",
    [(), ("--all", "hadar-static"), ("--all", "--json"), ("synergy-replay", "--keep"), ("--all", "--trace", "t")],
)
def test_what_does_not_go_together_is_refused(
    site: Site, measured: list[tuple[str, bool]], given: tuple[str, ...]
) -> None:
    assert site.run("reproduce", *given, "--page", str(site.folder / "figures.md")).exit_code == 2
    assert not measured, "it is refused before hours of work"


def test_single_results_are_kept_for_this_program_in_the_folder_that_is_named(
    site: Site, asked: list[ExperimentSetup]
) -> None:
    for options in ((), ("--cases", str(site.folder / "cases"))):
        site.run("reproduce", "synergy-static", "--data", str(site.folder), *options)
    assert asked[0].cases is None
    assert asked[1].cases == KeptCases.of_this_program(site.folder / "cases", site.folder)


_TWO_POLICIES = ("mixed", "--quick", "--knowledge", "perfect", "--policies", "slurm,tesserae-packed/las")


def test_policies_on_mixed_workloads_stand_side_by_side_within_80_columns(site: Site) -> None:
    page = site.folder / "mixed.html"
    lines = site.lines("reproduce", *_TWO_POLICIES, "--html", str(page))
    assert lines[0] == "drawn, perfect knowledge, load 0.9:"
    heads = ["POLICY", "MEAN", "MED", "P99", "SPAN", "RHO", "R95", "GAP", "USE", "MOVE", "MIG", "MS", "MAX"]
    assert lines[1].split() == heads
    slurm, packed = lines[2].split(), lines[3].split()
    assert (slurm[0], packed[0]) == ("slurm", "tesserae-packed/las")
    assert (slurm[-2:], len(slurm), len(packed)) == (["-", "-"], len(heads), len(heads))
    assert max(map(len, lines)) <= 80
    assert page.read_text(encoding="utf-8").count("<figure") == 3


def test_the_rows_of_policies_on_mixed_workloads_are_one_for_each_column(site: Site) -> None:
    printed = site.json("reproduce", *_TWO_POLICIES[:-1], "slurm")
    rows = {row["column"]: row for row in printed["rows"]}  # type: ignore[attr-defined]  # of JSON
    assert printed["ok"] is True
    assert rows.keys() == {column.value for column in MixedColumn}
    mean = rows["mean completion"]
    assert (mean["workload"], mean["knowledge"], mean["load"], mean["policy"]) == ("drawn", "perfect", 0.9, "slurm")
    assert mean["least"] == mean["measured"] == mean["most"] > 0
    assert rows["decision, median"]["measured"] is None


def test_a_page_of_another_experiment_is_refused(site: Site, asked: list[ExperimentSetup]) -> None:
    result = site.run("reproduce", "synergy-static", "--html", "x.html")
    assert (result.exit_code, asked) == (2, [])
    assert "--html is for mixed" in result.stderr
