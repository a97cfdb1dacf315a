"""Sweeps as values, in a folder, and what people see of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from slurmsched import __version__
from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.comparison.sweep import (
    ArrayOptions,
    CellResult,
    FailedCell,
    Sweep,
    SweepCell,
    SweepFolder,
    SweepFolderError,
    build_sweep,
    run_cell,
    run_locally,
    scale_load,
    submit_array,
    wait_for_array,
)
from slurmsched.knowledge import Knowledge
from slurmsched.model import decode, encode
from slurmsched.report.comparison import compare_results, comparison_page, comparison_plots, comparison_view
from slurmsched.report.quantities import duration
from slurmsched.simulation import PolicyChoice, SimulationError, SimulationOptions
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster

NOON = 1_790_000_000.0
NODES = load_cluster("v100:1x8").nodes


def trace(name: str = "t", user: str = "alice") -> Trace:
    jobs = tuple(TraceJob(str(i), 60.0 * i, 4, 900.0 * (i + 1), user=user if i % 2 else "bob") for i in range(4))
    return Trace(name, jobs, "made by hand")


def planned(*policies: PolicyChoice, **more: object) -> Sweep:
    chosen = policies or (PolicyChoice("slurm"), PolicyChoice("synergy", "srtf"))
    return build_sweep(NODES, Knowledge(), chosen, lambda seed, _: trace(f"t{seed}"), SimulationOptions(), **more)  # type: ignore[arg-type]  # by name


def test_a_sweep_is_the_product_and_all_policies_share_a_trace() -> None:
    made = planned(seeds=(1, 2), loads=(3.0, 6.0))
    assert len(made.cells) == 8
    assert len(made.traces) == 4
    assert {(cell.load, cell.options.seed, cell.trace) for cell in made.cells} == {
        (3.0, 1, 0), (3.0, 2, 1), (6.0, 1, 2), (6.0, 2, 3),
    }  # fmt: skip


def test_a_sweep_is_json_and_back() -> None:
    made = planned(loads=(3.0,))
    assert decode(Sweep, encode(made)) == made


def test_a_load_draws_arrivals_together() -> None:
    assert [job.arrival for job in scale_load(trace(), 120.0).jobs] == [0.0, 30.0, 60.0, 90.0]
    with pytest.raises(SimulationError, match="all its jobs arrive at once"):
        scale_load(Trace("s", (TraceJob("0", 0.0, 1, 1.0), TraceJob("1", 0.0, 1, 1.0))), 3.0)


def test_a_cell_that_fails_is_named_and_the_others_stand() -> None:
    wide = Trace("wide", (TraceJob("0", 0.0, 99, 1.0),))
    made = planned(PolicyChoice("slurm"))
    made = replace(
        made,
        traces=(*made.traces, wide),
        cells=(*made.cells, SweepCell(PolicyChoice("synergy"), 1, SimulationOptions())),
    )
    good, bad = run_locally(made, 1)
    assert isinstance(good, CellResult)
    assert bad == FailedCell(made.cells[1], bad.reason if isinstance(bad, FailedCell) else "")
    assert "job 0 can never run here" in compare_results((good, bad)).lost[0]


def results(made: Sweep) -> tuple[CellResult | FailedCell, ...]:
    return tuple(CellResult(cell, run_cell(made, cell)) for cell in made.cells)


def test_the_table_holds_every_policy_against_the_first() -> None:
    made = planned()
    comparison = compare_results(results(made))
    first, second = comparison.rows
    assert (first.policy, first.ratio) == ("slurm", 1.0)
    assert second.ratio == pytest.approx(second.avg_jct_s / first.avg_jct_s)
    screen = Console(width=80, file=None, no_color=True)
    with screen.capture() as shown:
        screen.print(comparison_view(comparison))
    assert all(len(line.rstrip()) <= 80 for line in shown.get().splitlines())
    assert "synergy/srtf" in shown.get()


SOONER = (
    "b finishes a job in 1 h on average, 50 % sooner than a;"
    " its slowest jobs (one in a hundred) take 4 h or more, 100 % later."
)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((7200.0, 3600.0), SOONER),
        ((3600.0, 7200.0), "No policy finishes a job sooner on average than a, in 1 h."),
    ],
)
def test_the_headline(times: tuple[float, float], said: str) -> None:
    rows = tuple(
        replace(
            compare_results(results(planned(PolicyChoice("slurm")))).rows[0],
            policy=name,
            avg_jct_s=time,
            p99_jct_s=7200.0 if name == "a" else 14_400.0,
            ratio=time / times[0],
        )
        for name, time in zip("ab", times, strict=True)
    )
    assert replace(compare_results(()), rows=rows).headline == said


class Page(HTMLParser):
    """What a page refers to, and the tags in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def page_of(made: Sweep) -> str:
    return comparison_page(made, results(made), compare_results(results(made)), NOON)


def test_the_page_needs_nothing_else_and_takes_no_name_for_markup() -> None:
    hostile = "<script>alert(1)</script>"
    made = planned(loads=(3.0, 9.0), command=f"synsched compare {hostile}", cluster=hostile, left_out=[hostile])
    made = replace(made, traces=tuple(replace(t, name=hostile) for t in made.traces))
    text = page_of(made)
    page = Page(text)
    assert page.tags.count("script") == 1
    assert all(link.startswith("#") for link in page.links)
    assert page.tags.count("figure") == text.count('role="img"') == 7
    assert text.count("&lt;script&gt;") >= 4


def test_the_page_tells_when_and_by_what_it_was_made_and_what_went_in() -> None:
    text = page_of(planned(command="synsched compare ...", left_out=["left out: 3 jobs (they ask for no GPU)"]))
    assert f"by slurmsched {__version__}" in text
    assert "Written 2026-09-" in text
    assert "Left out: 3 jobs (they ask for no GPU)." in text
    assert "No job names a model or a task" in text
    assert "<code>synsched compare ...</code>" in text
    for heading in ("mean wait", "restarts", "moves", "GPU-hours", "left"):
        assert f">{heading}</th>" in text


def test_what_is_lost_by_rounding_alone_is_nothing() -> None:
    """GPU-seconds that were held and those that were kept are sums of the same times in another order."""
    (result,) = results(planned(PolicyChoice("slurm")))
    assert isinstance(result, CellResult)
    for error, told in ((1e-7, "0.0"), (-1e-7, "0.0"), (-7200.0, "2.0")):
        first, *others = result.run.jobs
        changed = replace(result.run, jobs=(replace(first, useful=first.service + error), *others))
        (row,) = compare_results([replace(result, run=changed)]).rows
        assert str(row.lost_gpu_hours) == told


def test_no_name_on_the_page_turns_its_text_round() -> None:
    made = replace(planned(), traces=(trace("\u202et", "\u202ecarol"),))
    text = page_of(made)
    assert ">?carol<" in text
    assert "?t, 4 jobs" in text
    assert "\u202e" not in text


def test_policies_that_do_the_same_are_said_to_and_drawn_as_one() -> None:
    """`tesserae` is `proportional` where no job has to change its node."""
    text = page_of(
        planned(PolicyChoice("slurm"), PolicyChoice("proportional", "fifo"), PolicyChoice("tesserae", "fifo"))
    )
    assert "tesserae/fifo starts every job when proportional/fifo does." in text
    assert "<bdi>proportional/fifo, tesserae/fifo</bdi>" in text


def test_curves_end_at_the_slowest_hundredth_and_the_axis_says_so() -> None:
    short = tuple(TraceJob(str(i), 60.0 * i, 1, 600.0) for i in range(299))
    made = replace(planned(PolicyChoice("slurm")), traces=(Trace("t", (*short, TraceJob("x", 1e5, 1, 1e6)), ""),))
    (plot, *_) = comparison_plots(
        [one for one in results(made) if isinstance(one, CellResult)], compare_results(results(made))
    )
    assert plot.x.high < 1e5
    assert plot.x.label == f"time, up to {duration(plot.x.high)}: p99 under slurm"


def test_a_folder_keeps_what_is_done_and_knows_what_is_missing(tmp_path: Path) -> None:
    folder, made = SweepFolder(tmp_path / "c"), planned()
    folder.create(made)
    folder.run_cell_at(1)
    assert folder.missing_cells(made) == (0,)
    lost, found = folder.results(folder.read_sweep())
    assert isinstance(found, CellResult)
    assert isinstance(lost, FailedCell)
    assert "no cell-0.json" in lost.reason
    (tmp_path / "c" / "cell-0.json").write_text('{"policy": 3')
    (spoilt, _) = folder.results(made)
    assert isinstance(spoilt, FailedCell)
    assert "cell-0.json is not a result of synsched" in spoilt.reason
    with pytest.raises(SweepFolderError, match="continue it with --resume"):
        folder.create(made)
    with pytest.raises(SweepFolderError, match="has cells 0 to 1, not 7"):
        folder.run_cell_at(7)


def test_on_slurm_only_what_is_missing_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = SweepFolder(tmp_path / "c"), planned()
    folder.create(made)
    folder.run_cell_at(0)
    asked: list[tuple[Sequence[str], str]] = []

    def sbatch(options: Sequence[str], script: str, _conf: str) -> str:
        asked.append((options, script))
        return "42"

    monkeypatch.setattr(submission, "submit", sbatch)
    assert submit_array(folder, made, ArrayOptions(partition="cpu", at_once=2)) == "42"
    ((options, script),) = asked
    assert {"--array=1%2", "--partition=cpu"} <= set(options)
    assert f"compare --resume {folder.path} --cell" in script
    folder.run_cell_at(1)
    assert submit_array(folder, made, ArrayOptions()) is None


class Sleepless:
    """A clock on which nobody waits."""

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None: ...


def test_one_question_serves_all_tasks() -> None:
    answers = ["41\n42\n42\n", "42\n", "41\n"]
    asked: list[Sequence[str]] = []

    def process(argv: Sequence[str], _given: str, _timeout: float, _env: Mapping[str, str]) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, answers.pop(0), "")

    polls: list[int] = []
    wait_for_array("42", Commands(5.0, runner=process), Sleepless(), on_poll=lambda: polls.append(1))
    assert (len(asked), len(polls)) == (3, 2)
