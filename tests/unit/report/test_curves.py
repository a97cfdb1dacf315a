"""Curves as lines of signs."""

from __future__ import annotations

from io import BytesIO, TextIOWrapper

import pytest
from rich.console import Console, RenderableType

from slurmsched.report.experiments import Sparkline, curves_listing


def drawn(what: RenderableType, encoding: str = "utf-8") -> str:
    buffer = BytesIO()
    stream = TextIOWrapper(buffer, encoding=encoding)
    Console(file=stream, width=80).print(what)
    stream.flush()
    return buffer.getvalue().decode(encoding).rstrip("\n")


@pytest.mark.parametrize(
    ("points", "signs"),
    [
        pytest.param([(0, 1.0), (50, 0.5), (100, 0.5)], "████▄▄▄▄", id="all, then half"),
        pytest.param([(0, 1.0), (25, 0.0), (100, 0.0)], "██      ", id="nothing shows nothing"),
        pytest.param([(10, 0.0), (10, 1.0), (90, 1.0)], "████████", id="a step that takes no time"),
        pytest.param([(0, 0.25), (80, 0.0)], "▂▂▂▂▂▂▂▂", id="the last point only ends it"),
    ],
)
def test_every_sign_is_the_mean_of_its_part(points: list[tuple[float, float]], signs: str) -> None:
    assert drawn(Sparkline(points, top=1.0, width=8)).ljust(8) == signs


def test_a_terminal_without_blocks_has_them_in_ascii() -> None:
    assert drawn(Sparkline([(0, 1.0), (50, 0.5), (100, 0.5)], top=1.0, width=4), "ascii") == "%%=="


def test_few_values_are_told_and_no_line_is_too_long() -> None:
    long = [(3600.0 * at, 0.97) for at in range(300)]

    lines = drawn(curves_listing({"gavel v100": long, "M-1": [(90, 0.8), (180, 0.75)], "never": []})).splitlines()

    assert [line.split()[0] for line in lines] == ["CURVE", "gavel", "M-1"]
    assert lines[2].split() == ["M-1", "90", "180", "0.8", "0.8", "0.75"]
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].endswith("█" * 24)
