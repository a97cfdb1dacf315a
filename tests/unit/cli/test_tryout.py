"""`synsched tryout` as a newcomer meets it: a file of sacct, one command, a page."""

from __future__ import annotations

import shlex
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmsched.cli import main
from slurmsched.cli.invocation import Invocation
from slurmsched.settings.file import load_settings_file
from tests.unit.cli.conftest import Site
from tests.unit.traces.test_accounting import HEAD, row

CLUSTER = "a100:1x4:16:64G"


@pytest.fixture
def month(site: Site) -> str:
    """Four GPUs for an hour; then ten hours of them for bob, and six minutes for carol, who came last."""
    amounts = {"ReqTRES": "cpu=4,mem=16G,gres/gpu=4", "AllocTRES": "cpu=4,mem=16G,gres/gpu:a100=4,gres/gpu=4"}
    rows = [
        row("1", **amounts, Start="2026-10-01T00:00:00", End="2026-10-01T01:00:00", Comment="synsched:ckpt=usr1"),
        row(
            "2",
            **amounts,
            User="bob",
            Submit="2026-10-01T00:01:00",
            Start="2026-10-01T01:00:00",
            End="2026-10-01T11:00:00",
            Elapsed="10:00:00",
            Timelimit="20:00:00",
        ),
        row(
            "3",
            **amounts,
            User="bob",
            Submit="2026-10-01T00:02:00",
            Start="2026-10-01T11:00:00",
            End="2026-10-01T21:00:00",
            Elapsed="10:00:00",
            Timelimit="20:00:00",
        ),
        row(
            "4",
            **amounts,
            User="<b>carol",
            JobName="</td><script>alert(1)</script>",
            Submit="2026-10-01T00:05:00",
            Start="2026-10-01T21:00:00",
            End="2026-10-01T21:06:00",
            Elapsed="00:06:00",
            Timelimit="00:12:00",
        ),
        row("5", State="CANCELLED by 0", Start="None", End="2026-10-01T00:05:00", Elapsed="00:00:00"),
    ]
    path = site.folder / "month.txt"
    path.write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    return str(path)


class Reader(HTMLParser):
    """The visible text, the tags, and what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags, self.loads, self._inside = list[str](), list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside.append(tag)
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href") and not (value or "").startswith("#")
        ]

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._inside or self._inside[-1] not in ("script", "style"):
            self.text.append(data)


def test_the_answer_the_figures_who_gains_and_what_to_set(site: Site, month: str) -> None:
    found = site.json("tryout", month, "--cluster", CLUSTER)
    recorded, slurm, unified = found["columns"]  # type: ignore[misc]
    assert (recorded["mean_s"], slurm["mean_s"]) == (slurm["mean_s"], (60 + 659 + 1258 + 1261) / 4 * 60)
    assert unified["mean_s"] < slurm["mean_s"]
    gains = {group["name"]: group["hours_sooner"] for group in found["gains"] if group["kind"] == "user"}  # type: ignore[attr-defined]
    assert gains["<b>carol"] > 9
    assert gains["alice"] < 0  # her job can be preempted
    assert unified["restarts"] >= 1
    assert found["left_out"] == {"jobs that ended before they ran (cancelled while they waited)": 1}
    assert found["windows_in_period"] == len(found["windows"]) == 1  # type: ignore[arg-type]
    assert "sooner than under plain Slurm" in str(found["headline"])
    settings = str(found["settings"])
    assert tomllib.loads(settings)["policy"] == {"system": "unified"}
    site.config.write_text(settings, encoding="utf-8")
    loaded = load_settings_file(site.config).settings
    assert (loaded.manage.partitions, loaded.learning.lengths) == (("gpu",), True)


def test_the_page_has_it_all_and_loads_nothing(site: Site, month: str) -> None:
    page = site.folder / "month.html"
    lines = site.lines("tryout", month, "--cluster", CLUSTER, "--html", str(page))
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    shown = " ".join(" ".join(reader.text).replace("\u00a0", " ").split())
    assert lines[0] in shown
    for words in ("median completion", "GPUs idle", "Who gains, who loses", "What to set", 'system = "unified"'):
        assert words in shown
    for words in ("cancelled while they waited", "EASY backfill", "Written ", " by slurmsched ", "Ranges are not told"):
        assert words in shown
    assert "</td><script>alert(1)</script>" in shown
    assert reader.tags.count("script") == 1
    assert reader.loads == []
    assert shown.count("unified") > 3
    assert "Job completion times" in shown


def test_the_terminal_fits_eighty_columns_but_for_sentences(site: Site, month: str) -> None:
    lines = site.lines("tryout", month, "--cluster", CLUSTER)
    tables = [line for line in lines if line.startswith(("mean ", "p99 ", "makespan", "GPUs", "By ", "bob"))]
    assert len(tables) >= 8
    assert max(map(len, tables)) <= 80
    text = "\n".join(lines)
    assert "Those that would have lost most:" in text
    assert "job 2 of bob" in text or "job 3 of bob" in text


def test_a_cluster_that_nobody_named_is_guessed_and_said_so(site: Site, month: str) -> None:
    text = "\n".join(site.lines("tryout", month))
    assert "the cluster is a guess: as many GPUs as jobs held at once, a100:1x4" in text


def test_standard_input_is_read_too(site: Site, month: str) -> None:
    text = Path(month).read_text(encoding="utf-8")
    asked = ["tryout", "-", "--cluster", CLUSTER]
    result = CliRunner().invoke(main, asked, obj=Invocation(site.config, site.clock), input=text)
    assert result.exit_code == 0
    assert "4 jobs from 2026-10-01" in result.output


def test_a_cluster_that_is_too_small_is_noticed(site: Site, month: str) -> None:
    other = site.folder / "more.txt"
    other.write_text(
        Path(month).read_text(encoding="utf-8")
        + row("9", Submit="2026-10-01T00:30:00", Start="2026-10-01T00:30:00", End="2026-10-01T01:30:00")
        + "\n"
    )
    text = "\n".join(site.lines("tryout", str(other), "--cluster", CLUSTER))
    assert "sacct shows 5 GPUs in use at once, and this cluster has 4" in text


def quiet_month(site: Site, wait: int) -> str:
    """Eight jobs a quarter of an hour apart, each of which runs for five minutes after `wait` minutes."""
    rows = [
        row(
            str(number),
            Submit=f"2026-10-01T0{number // 4}:{15 * (number % 4):02d}:00",
            Start=f"2026-10-01T0{number // 4}:{15 * (number % 4) + wait:02d}:00",
            End=f"2026-10-01T0{number // 4}:{15 * (number % 4) + wait + 5:02d}:00",
            Elapsed="00:05:00",
        )
        for number in range(8)
    ]
    path = site.folder / "quiet.txt"
    path.write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_where_nobody_waits_the_answer_says_that_there_is_nothing_to_gain(site: Site) -> None:
    text = " ".join(site.lines("tryout", quiet_month(site, 0), "--cluster", CLUSTER))
    assert text.startswith("unified would have changed nothing: every job starts when it does under plain Slurm.")
    assert "jobs hardly wait: there is no queue for a policy to order better" in text
    assert "has no priorities" not in text
    assert "--checkpoints" not in text  # there is nothing to preempt for


def test_where_nobody_waits_but_did_the_answer_says_what_they_may_have_waited_for(site: Site) -> None:
    text = " ".join(site.lines("tryout", quiet_month(site, 6), "--cluster", CLUSTER))
    assert "jobs hardly wait, though by sacct they waited 6 min on average: there is no queue" in text
    assert text.count("The simulation has no priorities, partitions") == 1


def test_no_job_a_minute_sooner_or_later_is_said_in_these_words_and_without_zeros(site: Site) -> None:
    """Five of one GPU where four fit: a round starts the last seconds after Slurm would."""
    rows = [
        row(str(minute), Submit=f"2026-10-01T00:{minute:02d}:00", Start=f"2026-10-01T00:{minute:02d}:00")
        for minute in (0, 2, 4, 6, 8)
    ]
    path = site.folder / "five.txt"
    path.write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    text = " ".join(site.lines("tryout", str(path), "--cluster", CLUSTER))
    assert text.startswith("Under unified no job would have ended a minute sooner or later than under plain Slurm.")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(("nowhere.txt",), "cannot read nowhere.txt", id="no such file"),
        pytest.param(
            ("FILE", "--cluster", "a100:1x2"), "the cluster can hold none of the jobs", id="all jobs too large"
        ),
        pytest.param(("FILE", "--cluster", "nodes.txt"), "nodes.txt", id="no such cluster"),
        pytest.param(("FILE", "--policy", "slurm"), "name another policy", id="slurm against itself"),
        pytest.param(("FILE", "--policy", "sinergy"), "sinergy", id="no such policy"),
        pytest.param(("FILE", "--html", "nowhere/page.html"), "cannot write nowhere/page.html", id="no such folder"),
        pytest.param(("FILE", "--round", "0"), "--round must be 1 to", id="rounds of nothing"),
    ],
)
def test_a_mistake_is_one_line(site: Site, month: str, given: tuple[str, ...], words: str) -> None:
    result = site.run("tryout", *(month if part == "FILE" else part for part in given))
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_help_prints_the_command_to_run_on_the_cluster(site: Site) -> None:
    text = site.run("tryout", "--help").stdout
    command = text.partition("Example:")[2].partition(" > month.txt")[0].replace("\\\n", " ")
    words = shlex.split(command)
    setting, *words = words
    assert setting == "SLURM_TIME_FORMAT=%s", "times of a zone jump when its clocks change"
    assert words[:7] == ["sacct", "-a", "-XDP", "-S", "now-30days", "-E", "now"]
    assert set(words[7::2]) == {"-o"}
    assert ",".join(words[8::2]).split(",") == HEAD.split("|")
