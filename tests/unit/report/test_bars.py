"""Bars, in both alphabets."""

from __future__ import annotations

from io import BytesIO, TextIOWrapper

import pytest
from rich.console import Console, RenderableType

from slurmsched.model import GpuUsage
from slurmsched.report.tables import Column, GpuBar, Listing, LoadBar


def drawn(what: RenderableType, encoding: str, width: int = 40) -> str:
    buffer = BytesIO()
    stream = TextIOWrapper(buffer, encoding=encoding)
    Console(file=stream, width=width).print(what)
    stream.flush()
    return buffer.getvalue().decode(encoding).rstrip()


BAR = GpuBar((GpuUsage(0, "v100", 1000), GpuUsage(1, "v100", 250), GpuUsage(2, "v100")))


@pytest.mark.parametrize(("encoding", "signs"), [("utf-8", "█▒·"), ("ascii", "#+.")])
def test_each_gpu_is_one_sign(encoding: str, signs: str) -> None:
    assert drawn(BAR, encoding) == signs


@pytest.mark.parametrize(
    ("used", "total", "signs"),
    [
        pytest.param(0, 100, "..........", id="nothing"),
        pytest.param(1, 100, "#.........", id="a little shows"),
        pytest.param(99, 100, "#########.", id="nearly all is not all"),
        pytest.param(100, 100, "##########", id="all"),
        pytest.param(5, 0, "..........", id="of nothing"),
    ],
)
def test_a_load_bar(used: int, total: int, signs: str) -> None:
    assert drawn(LoadBar(used, total, 10), "ascii") == signs


def test_a_listing_is_cut_without_signs_that_the_screen_lacks() -> None:
    listing = Listing((Column("A"), Column("WHY")), [("1", "a sentence that is too long for this")])
    assert drawn(listing, "ascii", width=20).splitlines()[1].rstrip() == "1 a sentence that is"
    assert drawn(listing, "utf-8", width=20).splitlines()[1].rstrip() == "1 a sentence that i…"


def test_a_listing_that_fits_is_not_stretched() -> None:
    assert drawn(Listing((Column("A"), Column("WHY")), [("1", "short")]), "utf-8", width=200) == "A WHY  \n1 short"
