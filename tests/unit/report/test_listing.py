"""Listings on a screen that is too narrow for them."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from slurmsched.report.tables import Column, Listing

COLUMNS = (Column("FIGURE"), Column("OURS", right=True), Column("WHY"))
ROW = ("total time over Gavel", "1.3561", "few jobs lie there")


def drawn(listing: Listing, width: int) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=width).print(listing)
    return [line.rstrip() for line in stream.getvalue().splitlines()[1:]]


@pytest.mark.parametrize(
    ("wrapped", "giving", "lines"),
    [
        pytest.param(False, -1, ["total time over Gavel 1.3561 few jo…"], id="the last column is cut"),
        pytest.param(
            True,
            -1,
            ["total time over Gavel 1.3561 few", " " * 29 + "jobs", " " * 29 + "lie", " " * 29 + "there"],
            id="the last column goes on below",
        ),
        pytest.param(False, 0, ["total tim… 1.3561 few jobs lie there"], id="the first is cut, and numbers are whole"),
        pytest.param(
            True,
            0,
            ["total time 1.3561 few jobs lie there", "over Gavel"],
            id="the first goes on below",
        ),
    ],
)
def test_one_column_gives_way_to_the_others(wrapped: bool, giving: int, lines: list[str]) -> None:
    assert drawn(Listing(COLUMNS, [ROW], wrapped=wrapped, shrinking=giving), 36) == lines


def test_where_all_fits_nothing_is_padded() -> None:
    assert drawn(Listing(COLUMNS, [ROW], shrinking=0), 80) == ["total time over Gavel 1.3561 few jobs lie there"]
