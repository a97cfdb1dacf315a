"""The page of the live system: what it tells everybody, and what it tells nobody."""

from __future__ import annotations

import re
import sqlite3
from html import unescape
from math import isnan
from pathlib import Path

import pytest

from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.model import encode
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.state import Account, encode_state
from slurmsched.report.live_page import ClusterHistory, cluster_history, history_plots
from slurmsched.store.publication import read_public
from slurmsched.store.read_only import open_read_only
from slurmsched.store.rows import UseRow
from slurmsched.store.store import Switches
from tests.unit.cli.conftest import NOON, Site
from tests.unit.cli.test_status import tell_idle
from tests.unit.report.live_site import DAY, HOUR, USERS, live_site, publish

HOSTILE = (
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    '" onmouseover="alert(2)',
    "x" * 10_000,
    "a\nb\x1b[2J",
    "{{ 7*7 }}",
)


def page_of(site: Site) -> str:
    result = site.run("report")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def words(page: str) -> str:
    """What a person reads: no markup, no script, no style; blanks as one."""
    body = re.sub(r"(?s)<(script|style)>.*?</\1>", " ", page)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return live_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def page(site: Site) -> str:
    return page_of(site)


def test_the_answer_comes_first(page: str) -> None:
    (answer,) = re.findall(r"<h1>(.*?)</h1>", page)
    assert answer == "14 jobs run and 7 wait; 16 of 72 GPUs are idle, 8 down, 8 reserved."
    told = words(page)
    assert "synsched on demo mode enforce policy synergy, order las last round 30 s before " in told
    assert told.index(answer) < told.index("policy synergy") < told.index("largest job that could start now")


def test_every_job_is_told_with_its_place_its_start_and_why(page: str) -> None:
    rows = {row.split()[0]: row for row in map(words, re.findall(r"(?s)<tr>(.*?)</tr>", page))}
    assert rows["1000"] == "1000 resnet50-sweep alice gpu 8 v100 3 runs v100-1 keeps its nodes"
    waits = rows["1016"]
    assert waits.startswith("1016 llama-7b-sft carol gpu 8 3 waits ")
    assert re.search(
        r"waits (\w+ )?\d\d:\d\d (\w+ )?\d\d:\d\d to (\w+ )?\d\d:\d\d waits behind 3 jobs in las order", waits
    )
    assert len([row for row in rows if row.isdecimal()]) == 21


def test_every_gpu_is_told_by_node(page: str) -> None:
    nodes = dict(re.findall(r'(?s)<div class="node"><div class="head"><b>([^<]*)</b>(.*?</ul>)', page))
    cells = {
        name: [" ".join(cell) for cell in re.findall(r'<li class="(\w+)"[^>]*>([^<]*)</li>', node)]
        for name, node in nodes.items()
    }
    assert cells["v100-1"] == ["used 1000"] * 8
    assert cells["v100-2"] == ["used 1001"] * 4 + ["idle idle", "part part"] * 2
    assert cells["k80-8"] == ["kept resv"] * 8
    assert cells["k80-9"] == ["down down"] * 8
    assert 'title="v100 0: in use by job 1000 of alice"' in page
    assert "reserved: exam" in words(page)
    assert "down*: fan failed [root]" in words(page)


def test_the_bar_of_a_type_tells_reserved_gpus_from_idle_ones(page: str) -> None:
    table = page[page.index('id="gpus"') : page.index('id="jobs"')]
    bars = {
        kind: re.findall(r'<rect class="(\w+)" x="([\d.]+)%" width="([\d.]+)%"', row)
        for kind, row in re.findall(r'(?s)<tr><th scope="row">(\w+)</th>(.*?)</tr>', table)
    }
    third, two_thirds = "33.33", "66.67"
    all_of_it = ("rest", "0", "100")
    assert bars["k80"] == [
        all_of_it, ("used", "0", third), ("kept", third, third), ("down", two_thirds, third)
    ]  # fmt: skip
    assert bars["a100"] == [all_of_it, ("used", "0", "50")]
    assert 'aria-label="8 of 24 in use, 8 reserved, 8 down"' in table


def test_forecasts_are_told_with_how_earlier_ones_turned_out(page: str) -> None:
    assert (
        "Of 300 starts 83 % were within the range told first (8 of 10 are meant to be); the median error was 5 min."
        in words(page)
    )


def test_it_has_a_history_of_gpus_jobs_and_waits(page: str) -> None:
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles == ["GPUs in use", "Managed jobs", "Waits of jobs that started"]
    assert re.search(r"Of 300 jobs half waited at most \d+ min \d+ s, nine of ten 1 h", words(page))


def test_no_word_of_a_hint_and_nothing_of_idle_gpus_is_on_it(tmp_path: Path) -> None:
    site = live_site(tmp_path, hint="modle=secret-model,ckpt=usr1@30")
    tell_idle(site)
    publish(site)
    page = page_of(site)
    for word in ("secret", "modle", "ckpt", "usr1", "idle=last"):
        assert word not in page
    assert "unknown hint" in site.run("status").stdout, "status tells it, so that it is left out and not missing"
    assert "<h2>" not in page, "no heading of problems"


@pytest.mark.parametrize(
    ("hidden", "gone", "stays"),
    [
        pytest.param(
            {"jobs"},
            ["alice", "erin", "resnet50", "1000", "Waits of jobs", "Of 300 starts"],
            ["14 jobs run and 7 wait", "Who runs and who waits is not shown", "v100-1", "GPUs in use", "Managed jobs"],
            id="jobs",
        ),
        pytest.param(
            {"usage"},
            ["waits behind", "Waits of jobs", "Of 300 starts", "Managed jobs"],
            ["alice", "1000 resnet50-sweep", "v100-1"],
            id="usage",
        ),
        pytest.param(
            {"nodes"}, ["8 of 8 in use", "GPUs in use", "Managed jobs"], ["alice", "Waits of jobs"], id="nodes"
        ),
        pytest.param({"users"}, [], ["alice", "Waits of jobs", "GPUs in use"], id="users"),
    ],
)
def test_what_slurm_hides_is_hidden_whoever_makes_the_page(
    tmp_path: Path, hidden: set[str], gone: list[str], stays: list[str]
) -> None:
    told = words(page_of(live_site(tmp_path, private=frozenset(hidden))))
    assert [word for word in gone if word in told] == []
    assert [word for word in stays if word not in told] == []
    assert f"PrivateData of slurm.conf hides {', '.join(hidden)}" in told


def test_who_may_not_read_the_database_has_no_history(site: Site, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmsched.report.live_page.os.access", lambda *_: False)
    told = words(page_of(site))
    assert "Waits of jobs" not in told
    assert "Of 300 starts" not in told
    assert told.split("Nodes", 1)[0].startswith(words(page).split("Nodes", 1)[0][:200])


def test_hostile_names_are_text_in_one_line_and_no_longer_than_others(tmp_path: Path) -> None:
    page = page_of(live_site(tmp_path, names=HOSTILE))
    assert "<script>alert" not in page
    assert 'onmouseover="' not in page.replace("&#34;", "")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "x" * 49 not in page
    assert "{{ 7*7 }}" in page
    assert len(page) < 120_000


@pytest.mark.parametrize("policy", ["gandiva-fair", "unified"])
def test_shares_are_told_where_the_policy_has_tickets(tmp_path: Path, policy: str) -> None:
    site = live_site(tmp_path, days=0)
    accounts = {
        user: Account(due=HOUR * 10, received=HOUR * (8 + index), holdings={"v100": 2.5})
        for index, user in enumerate(USERS)
    }
    database = site.opened()
    state = encode(encode_state(GandivaFairState(time=NOON - 60, accounts=accounts)))
    database.insert("policy_state", {"system": policy, "state": state})
    database.close()
    publish(site)
    assert "Shares by tickets" not in page_of(site), "they are of another time"
    database = site.opened()
    database.write("UPDATE rounds SET system = ?", (policy,))
    database.close()
    publish(site)
    told = words(page_of(site))
    assert "Shares by tickets" in told
    assert "alice 10.0 8.0 80 % 2.50 v100" in told
    assert "erin 10.0 12.0 120 % 2.50 v100" in told


@pytest.mark.parametrize(
    ("what", "told"),
    [
        pytest.param("pause", "Paused by root 5 min ago (upgrade &amp; &lt;b&gt;): nothing is changed", id="paused"),
        pytest.param("dead", "No daemon is running: no heartbeat for 1 h", id="no daemon"),
        pytest.param("disable", "exists: remove it to go on", id="disabled"),
    ],
)
def test_what_needs_somebody_is_told_at_the_top(tmp_path: Path, what: str, told: str) -> None:
    site = live_site(tmp_path, days=0)
    match what:
        case "pause":
            database = site.opened()
            Switches(database).pause("root", "upgrade & <b>", NOON - 300)
            database.close()
        case "dead":
            HeartbeatFile(site.folder / "heartbeat").write(NOON - HOUR, "enforce", 300.0)
        case "disable":
            (site.folder / "disable").touch()
    publish(site)
    page = page_of(site)
    assert told in page
    assert page.index(told) < page.index("largest job")


def test_before_the_first_round_there_is_none(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.configure()
    result = site.run("report")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("synsched: nothing has been published in")


def test_many_nodes_are_drawn_without_ids_and_many_jobs_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmsched.report.live_page.MOST_JOBS", 150)
    page = page_of(live_site(tmp_path, 80, 40, days=0))
    assert page.count('<div class="node"') == 80
    assert '<li class="used" title="v100 0: in use by job 1000 of alice"></li>' in page
    assert page.count('<th scope="row" data-v') == 150
    assert re.search(r"And \d+ more that wait\.", page)


def test_the_page_of_the_daemon_loads_itself_and_says_when_it_is_old(site: Site, page: str, tmp_path: Path) -> None:
    kept_up = tmp_path / "page.html"
    result = site.run("report", "--background", "-o", str(kept_up))
    assert result.exit_code == 0, result.stderr
    text = kept_up.read_text(encoding="utf-8")
    assert '<body data-reload="300.0">' in text
    assert f'data-late="{NOON + 900.0}" hidden>This page was written' in text
    assert "data-reload" not in page.replace("dataset.reload", "")
    assert "data-late=" not in page
    assert kept_up.stat().st_mode & 0o777 == 0o644


def test_the_history_of_an_older_release_is_one_of_waits(tmp_path: Path) -> None:
    """Before its daemon was started anew the database has no columns for GPUs."""
    site = live_site(tmp_path)
    plain = sqlite3.connect(site.database)
    for column in ("gpus", "gpus_used", "gpus_down"):
        plain.execute(f"ALTER TABLE rounds DROP COLUMN {column}")
    plain.close()
    history = cluster_history(site.database, read_public(site.folder / "export"), NOON)
    assert history is not None
    assert [plot.title for plot in history_plots(history, NOON, 300.0)] == ["Waits of jobs that started"]


def test_waits_are_from_submission_to_the_first_start(tmp_path: Path) -> None:
    site = live_site(tmp_path, days=0)
    database = site.opened()
    for job, submitted, starts in (("1", NOON - 900, (NOON - 600, NOON - 60)), ("2", None, (NOON - 300,))):
        row = {"id": job, "owner": "alice", "first_seen": NOON - 400, "last_seen": NOON, "state": "finished"}
        database.insert("jobs", {**row, "original": "{}", "submitted": submitted})
        for at in starts:
            database.insert("events", {"at": at, "job": job, "kind": "started", "sentence": "runs"})
    database.close()
    with open_read_only(site.database) as store:
        assert store.start_waits(NOON - DAY) == ((NOON - 600, 300.0), (NOON - 300, 100.0))
        assert store.start_waits(NOON - 500) == ((NOON - 300, 100.0),)


def test_between_rounds_that_are_far_apart_nothing_is_known() -> None:
    use = tuple(UseRow(at, 8, 4, 0, 1, 0) for at in (0.0, 300.0, 600.0, 36_000.0, 36_300.0))
    (gpus, _) = history_plots(ClusterHistory(0.0, use), 36_600.0, 300.0)
    used = next(curve for curve in gpus.curves if "GPUs in use" in curve.names)
    known = [at for at, value in used.points if not isnan(value)]
    assert {value for _, value in used.points if not isnan(value)} == {4.0}
    assert max(at for at in known if at < 30_000) < 600 + 3 * 300 + 400
    assert min(at for at in known if at > 30_000) > 35_500


def test_the_use_of_each_minute_is_read_once(site: Site) -> None:
    with open_read_only(site.database) as store:
        assert {row.gpus for row in store.use_history(NOON - 9 * DAY)} == {72}
        assert len(store.use_history(NOON - HOUR)) == len(store.use_history(NOON - 2 * HOUR)) - 12
