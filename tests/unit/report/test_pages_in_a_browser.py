"""Pages as people see them, in a headless Chromium: wide and narrow, light and dark, by mouse, on paper, hostile."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from slurmsched.comparison.sweep import CellResult, build_sweep, run_cell
from slurmsched.experiments.experiment import MixedColumn, MixedRow
from slurmsched.report.comparison import compare_results, comparison_page
from slurmsched.report.mixed import mixed_page
from slurmsched.simulation import SimulationOptions, parse_policy
from slurmsched.simulation.inputs import load_trace, profiles_or_shipped
from slurmsched.traces.clusters import load_cluster
from tests.browser import CUT, OVERFLOWING, OVERLAPPING, POOR, SMALL, Browser, chromium
from tests.unit.report.live_site import live_site
from tests.unit.report.test_live_page import HOSTILE

POLICIES: Final = ("slurm", "synergy/las", "proportional/las", "tesserae/las")
"""The last two do the same here."""
CHECKOUT: Final = Path(__file__).parents[3]
PAGES: Final = ("comparison", "mixed", "live", "large")
AFTER_MIDNIGHT: Final = (1, 40, 120, 300, 390, 430, 720, 1439)
"""Minutes at which days begin at other places of the axes."""
A4: Final = 718
"""Pixels between the margins with which Chromium prints on A4; letter paper is wider."""


@dataclass(frozen=True)
class Pages:
    """Files of pages by name, made when first asked for."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        file = self.folder / f"{name}.html"
        if not file.exists():
            made: dict[str, Callable[[], str]] = {
                "comparison": comparison,
                "example": example,
                "mixed": mixed,
                "live": lambda: self._live("live", 9, 7),
                "large": lambda: self._live("large", 70, 9),
                "hostile": lambda: self._live("hostile", 9, 7, names=HOSTILE),
                "kept up": lambda: self._live("kept-up", 9, 7, kept_up=True),
                "old": lambda: self._live("old", 9, 7, kept_up=True, ago=7200.0),
                **{
                    f"{minutes} min": partial(self._live, f"{minutes}", 9, 7, ago=since_midnight() - 60.0 * minutes)
                    for minutes in AFTER_MIDNIGHT
                },
            }
            file.write_text(made[name](), encoding="utf-8")
        return file

    def _live(
        self, name: str, nodes: int, waiting: int, *, kept_up: bool = False, ago: float = 0.0, **other: object
    ) -> str:
        folder = self.folder / name
        folder.mkdir()
        site = live_site(folder, nodes, waiting, now=time.time() - ago, **other)  # type: ignore[arg-type]  # by name
        out = folder / "page.html"
        result = site.run("report", "-o", str(out), *(["--background"] if kept_up else []))
        assert result.exit_code == 0, result.stderr
        return out.read_text(encoding="utf-8")


def since_midnight() -> float:
    """Returns the seconds since the day began here, where the axes have their days."""
    now = datetime.now().astimezone()
    return (now - now.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()


def comparison() -> str:
    made = build_sweep(
        load_cluster("v100:2x8").nodes,
        profiles_or_shipped(None),
        [parse_policy(name) for name in POLICIES],
        lambda seed, load: load_trace(f"synergy-multi:16@{load or 12:g}", seed=seed).trace,
        SimulationOptions(),
        cluster="v100:2x8",
        command="synsched compare --cluster v100:2x8 --trace synergy-multi:16@12 --policies " + ",".join(POLICIES),
        left_out=["left out: 3 jobs (<script>document.title = 'bad'</script>)"],
    )
    (trace,) = made.traces
    jobs = tuple(replace(job, user=USERS[number % len(USERS)]) for number, job in enumerate(trace.jobs))
    made = replace(made, traces=(replace(trace, name="<img src=x onerror=alert(1)>", jobs=jobs),))
    results = tuple(CellResult(cell, run_cell(made, cell)) for cell in made.cells)
    return comparison_page(made, results, compare_results(results), time.time())


USERS: Final = ("alice", "<b>bob</b>", "\u202ecarol", "d" * 200)


def example() -> str:
    """The page of a comparison as a user makes it."""
    chosen = ("slurm", "drf", "synergy/las", "gandiva-fair")
    made = build_sweep(
        load_cluster("v100:2x8").nodes,
        profiles_or_shipped(None),
        [parse_policy(name) for name in chosen],
        lambda seed, load: load_trace(f"synergy-multi:40@{load or 4:g}", seed=seed).trace,
        SimulationOptions(),
        cluster="v100:2x8",
        command=f"synsched compare --cluster v100:2x8 --trace synergy-multi:40@4 --policies {','.join(chosen)}",
    )
    results = tuple(CellResult(cell, run_cell(made, cell)) for cell in made.cells)
    return comparison_page(made, results, compare_results(results), time.time())


def mixed() -> str:
    rows = [
        MixedRow(
            metric="", unit="", measured=value, workload="drawn", knowledge="perfect", load=load,
            policy=policy, column=column, least=0.9 * value, most=1.1 * value,
        )
        for load in (0.9, 1.2)
        for index, policy in enumerate((*POLICIES, "gavel", "hadar", "drf", "tiresias", "gandiva-fair", "a<b>&"))
        for column in MixedColumn
        for value in [0.0 if column is MixedColumn.UNFINISHED else load * (1 + (index * 7 + len(column)) % 11)]
    ]  # fmt: skip
    return mixed_page(rows, "synsched reproduce mixed", time.time())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read(browser: Browser, pages: Pages, name: str, width: int, dark: bool) -> None:
    browser.open(pages[name], width, dark=dark)
    assert browser.ask("return document.documentElement.scrollWidth") == width
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(CUT) == []
    assert browser.ask(OVERLAPPING) == []
    assert browser.ask(POOR) == []
    assert browser.ask(SMALL) == []
    assert browser.messages() == []
    assert browser.requests() == []
    red, green, blue = browser.ask("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(red, green, blue) < 60) if dark else (min(red, green, blue) > 240)
    assert browser.ask("return document.querySelector('h1').innerText.length") > 30
    picture = pages.folder / "picture.png"
    browser.picture(picture, most=2000)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000, "more than an empty page"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("minutes", AFTER_MIDNIGHT)
def test_days_are_on_the_axes_whatever_the_time_of_day(
    browser: Browser, pages: Pages, width: int, minutes: int
) -> None:
    browser.open(pages[f"{minutes} min"], width)
    assert browser.ask(CUT) == []
    assert browser.ask(OVERLAPPING) == []


@pytest.mark.parametrize("width", [320, 641, 768, 1120, 1121, 1920])
@pytest.mark.parametrize("name", ["live", "hostile"])
def test_the_jobs_fit_at_every_width_between_phone_and_screen(
    browser: Browser, pages: Pages, name: str, width: int
) -> None:
    browser.open(pages[name], width)
    assert browser.ask("return document.documentElement.scrollWidth") == width
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(SCROLLING) == []
    rows = browser.ask("return document.querySelector('table.rows').innerText")
    assert "waits behind 7 jobs in las order" in " ".join(rows.split())


SCROLLING: Final = """
return Array.from(document.querySelectorAll('.wide')).filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)
"""
"""Tables that are wider than there is room for them."""


@pytest.mark.parametrize(
    ("file", "name", "width", "dark", "most", "linked"),
    [
        pytest.param("live-light.png", "live", 1280, False, 1900, "admin.md", id="live, screen, light"),
        pytest.param("live-phone-dark.png", "live", 360, True, 900, "admin.md", id="live, phone, dark"),
        pytest.param("comparison-light.png", "example", 1280, False, 1200, "simulating.md", id="comparison, screen"),
        pytest.param("comparison-phone-dark.png", "example", 360, True, 900, "simulating.md", id="comparison, phone"),
    ],
)
def test_the_docs_show_pictures_of_the_pages(
    browser: Browser, pages: Pages, file: str, name: str, width: int, dark: bool, most: int, linked: str
) -> None:
    """Delete a picture to have it made anew."""
    picture = CHECKOUT / "docs" / "figures" / file
    if not picture.exists():
        browser.open(pages[name], width, dark=dark)
        browser.picture(picture, most=most)
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert struct.unpack(">II", header[16:]) == (width, most)
    assert picture.stat().st_size < 400_000
    assert f"](figures/{file})" in (CHECKOUT / "docs" / linked).read_text(encoding="utf-8")


def shown(browser: Browser, selector: str) -> list[bool]:
    return [
        bool(one)
        for one in browser.ask(
            "return Array.from(document.querySelectorAll(arguments[0])).map(e => e.getClientRects().length)", selector
        )
    ]


def test_a_click_in_a_legend_hides_a_policy_in_every_plot(browser: Browser, pages: Pages) -> None:
    browser.open(pages["comparison"])
    curves, button = 'path[data-s="1"], g[data-s="1"]', '.legend button[data-s="1"]'
    before = shown(browser, curves)
    assert len(before) > 8
    assert all(before)
    browser.click(button)
    assert not any(shown(browser, curves))
    assert browser.ask(f"return document.querySelector('{button}').getAttribute('aria-pressed')") == "false"
    assert browser.ask("return document.querySelector('tr[data-s=\"1\"]').className") == "dim"
    assert all(shown(browser, 'path[data-s="0"]')), "the others stay"
    browser.click(button)
    assert shown(browser, curves) == before
    assert browser.ask("return document.querySelectorAll('.off:not(.at):not(.name)').length") == 0


def test_what_stands_for_two_policies_is_hidden_with_both(browser: Browser, pages: Pages) -> None:
    browser.open(pages["comparison"])
    assert all(shown(browser, 'path[data-s="2 3"]'))
    browser.click('.legend button[data-s="2 3"]')
    assert not any(shown(browser, 'path[data-s="2 3"]'))
    assert browser.ask("return document.querySelectorAll('tr.dim').length") == 2


def tips(browser: Browser) -> str:
    return str(
        browser.ask("return Array.from(document.querySelectorAll('.tip:not([hidden])')).map(e => e.innerText).join()")
    )


def test_the_mouse_on_a_plot_tells_the_value_under_each_policy_that_is_shown(browser: Browser, pages: Pages) -> None:
    browser.open(pages["comparison"])
    assert tips(browser) == ""
    browser.hover(".plot .data", 0.6)
    told = tips(browser).splitlines()
    assert re.fullmatch(r"[\d hdmins]+", told[0]), "a time"
    assert sorted(re.sub(r": [\d.]+ %$", "", line) for line in told[1:]) == sorted(
        ["slurm", "synergy/las", "proportional/las, tesserae/las"]
    )
    browser.click('.legend button[data-s="0"]')
    browser.hover(".plot .data", 0.6)
    assert "slurm" not in tips(browser)
    browser.hover("h1")
    assert tips(browser) == ""


def test_the_mouse_tells_what_is_drawn(browser: Browser, pages: Pages) -> None:
    """At half of the load axis the mean is half way between both, and a point has its own values."""
    browser.open(pages["mixed"])
    browser.hover(".plot .data", 0.5)
    told = tips(browser).splitlines()
    assert told[0] == "1.05"
    value = 1.05 * (1 + len(MixedColumn.MEAN) % 11)
    assert f"slurm: {value:.3g}" in told
    assert browser.ask("return document.querySelectorAll('.tip .near').length") == 1
    browser.hover('details .plot[data-kind="points"] g[data-s="0"] use')
    first, x, y = tips(browser).splitlines()
    assert "slurm" in first
    fairness, mean = (0.9 * (1 + len(column) % 11) for column in (MixedColumn.WORST_RHO, MixedColumn.MEAN))
    assert (x, y) == (f"worst finish-time fairness: {fairness:.3g}", f"mean completion, hours: {mean:.3g}")


def column(browser: Browser, number: int) -> list[str]:
    return list(
        browser.ask(
            "return Array.from(document.querySelector('table.sortable').tBodies[0].rows)"
            ".filter(r => !r.hidden).map(r => r.cells[arguments[0]].innerText)",
            number,
        )
    )


def test_a_heading_sorts_by_value_and_again_the_other_way_round(browser: Browser, pages: Pages) -> None:
    browser.open(pages["comparison"])
    assert column(browser, 0) == list(POLICIES)
    for order in ("ascending", "descending"):
        browser.click("table.sortable thead th:nth-child(2) button")
        heading = "return document.querySelector('table.sortable thead th:nth-child(2)').getAttribute('aria-sort')"
        assert browser.ask(heading) == order
        ratios = [float(text) for text in column(browser, 2)]
        assert ratios == sorted(ratios, reverse=order == "descending"), "the mean over that of the first"
    browser.open(pages["live"])
    browser.click("table.filtered thead th:nth-child(1) button")
    browser.click("table.filtered thead th:nth-child(1) button")
    told = browser.ask("return Array.from(document.querySelectorAll('table.filtered tbody th')).map(e => e.innerText)")
    numbers = [int(text.split()[0]) for text in told]
    assert numbers == sorted(numbers, reverse=True)


def test_words_choose_the_jobs_that_are_shown(browser: Browser, pages: Pages) -> None:
    browser.open(pages["live"])
    browser.ask(
        "var f = document.getElementById('filter'); f.value = 'ALICE waits'; f.dispatchEvent(new Event('input'))"
    )
    rows = browser.ask(
        "return Array.from(document.querySelectorAll('table.filtered tbody tr')).filter(r => r.getClientRects().length)"
        ".map(r => r.innerText)"
    )
    assert rows
    assert all("alice" in row and "waits" in row for row in rows)


def test_ages_are_told_as_they_are_when_somebody_looks(browser: Browser, pages: Pages) -> None:
    browser.open(pages["live"])
    assert re.fullmatch(r"(\d+ s|\d+ min) ago", browser.ask("return document.querySelector('[data-ago]').innerText"))
    for name, late in (("kept up", False), ("old", True)):
        browser.open(pages[name])
        assert shown(browser, "[data-late]") == [late], name
    assert browser.ask("return document.querySelector('[data-ago]').innerText") == "2 h ago"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("name", ["hostile", "comparison"])
def test_hostile_names_do_nothing(browser: Browser, pages: Pages, name: str, width: int) -> None:
    browser.open(pages[name], width)
    assert browser.ask("return document.querySelectorAll('script, img, iframe, object, link').length") == 1
    assert browser.ask("return document.querySelectorAll('[onmouseover], [onerror], main b, bdi b').length") == 0
    assert "bad" not in browser.ask("return document.title")
    assert browser.ask("return /[\u202a-\u202e\u2066-\u2069]/.test(document.body.textContent)") is False
    assert browser.ask(OVERFLOWING) == []
    assert browser.messages() == []
    assert browser.requests() == []


def test_what_escaping_might_miss_the_policy_of_the_page_forbids(
    browser: Browser, pages: Pages, tmp_path: Path
) -> None:
    text = pages["live"].read_text(encoding="utf-8")
    injected = (
        "<script>document.title = 'bad'</script><img src='http://127.0.0.1:9/x' onerror=\"document.title = 'worse'\">"
        "<p id=styled style='color: red'>x</p>"
    )
    page = tmp_path / "injected.html"
    page.write_text(text.replace("<h1>", f"{injected}<h1>"), encoding="utf-8")
    browser.requests()
    browser.open(page)
    assert browser.ask("return document.title") == "synsched on demo"
    assert browser.ask("return getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    forbidden = [message for message in browser.messages() if "Content Security Policy" in message]
    assert len(forbidden) >= 3
    assert browser.requests() == []
    without = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    page.write_text(without, encoding="utf-8")
    browser.open(page)
    assert browser.ask("return document.title") != "synsched on demo", "it is the policy that kept this from happening"
    assert browser.requests() == ["http://127.0.0.1:9/x"]
    browser.messages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_printed_dark_on_white_with_all_that_can_be_opened(browser: Browser, pages: Pages, name: str) -> None:
    browser.open(pages[name], dark=True)
    printed = browser.paper()
    assert printed.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 60
    browser.on_paper(dark=True)
    assert browser.ask("return getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()") == "#fff"
    assert browser.ask("return Array.from(document.querySelectorAll('details')).every(e => e.open)")
    assert not any(shown(browser, ".controls, .tip"))


@pytest.mark.parametrize("name", [*PAGES, "hostile"])
def test_a_page_is_no_wider_than_its_paper(browser: Browser, pages: Pages, name: str) -> None:
    browser.open(pages[name], A4)
    browser.on_paper()
    assert browser.ask("return document.documentElement.scrollWidth") == A4
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(SCROLLING) == []
