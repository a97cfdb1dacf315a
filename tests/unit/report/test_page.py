"""What all pages share: axes, curves, the policy that forbids them to load anything."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from itertools import pairwise
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.report.page import Axis, Curve, Plot, Unit, clock_time, curves, means_over_time, render_page, steps

HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(
    ("axis", "labels"),
    [
        pytest.param(Axis("", 0, 40), ["0", "10", "20", "30", "40"], id="whole numbers"),
        pytest.param(Axis("", 0, 0.9), ["0", "0.2", "0.4", "0.6", "0.8"], id="parts"),
        pytest.param(Axis("", 0, 1, Unit.PERCENT), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"], id="per cent"),
        pytest.param(Axis("", 0, 45, Unit.DURATION), ["0 s", "10 s", "20 s", "30 s", "40 s"], id="seconds"),
        pytest.param(Axis("", 0, 5 * HOUR, Unit.DURATION), ["0 h", "1 h", "2 h", "3 h", "4 h", "5 h"], id="hours"),
        pytest.param(Axis("", 0, 5 * DAY, Unit.DURATION), ["0 d", "1 d", "2 d", "3 d", "4 d", "5 d"], id="days"),
        pytest.param(
            Axis("", 60, 2 * DAY, Unit.DURATION, log=True), ["1 min", "10 min", "1 h", "10 h", "2 d"], id="of time"
        ),
        pytest.param(Axis("", 1, 100, log=True), ["1", "3", "10", "30", "100"], id="decades"),
    ],
)  # fmt: skip
def test_an_axis_has_round_ticks(axis: Axis, labels: Sequence[str]) -> None:
    assert [label for _, label in axis.ticks()] == labels


AXES = st.one_of(
    st.builds(
        lambda low, factor, unit, log: Axis("", low, low * factor, unit, log),
        st.floats(1e-3, 1e8),
        st.floats(1.001, 1e6),
        st.sampled_from([Unit.NUMBER, Unit.DURATION, Unit.PERCENT]),
        st.booleans(),
    ),
    st.builds(lambda at, days: Axis("", at, at + days * DAY, Unit.TIME), st.floats(1e9, 3e9), st.floats(0.001, 100.0)),
)


@given(AXES)
def test_no_two_labels_of_an_axis_are_in_each_others_way(axis: Axis) -> None:
    places = [place for place, _ in axis.ticks()]
    assert len(places) <= 7
    assert all(0 <= place <= 1 for place in places)
    assert all(right - left >= 0.17 for left, right in pairwise(places))


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        pytest.param([(0, 1), (1, 2)], [(0, 1), (1, 2)], [("a", "b")], id="equal"),
        pytest.param([(0, 1), (1000, 2)], [(0, 1), (1001, 2)], [("a", "b")], id="nobody could tell them apart"),
        pytest.param([(0, 1), (1000, 2)], [(0, 1), (1100, 2)], [("a",), ("b",)], id="apart"),
        pytest.param([(0, 1), (1, 2)], [(0, 1)], [("a",), ("b",)], id="of another length"),
        pytest.param([(0, 1), (1, nan)], [(0, 1), (1, nan)], [("a", "b")], id="equal with a gap"),
        pytest.param([(0, 1), (1, nan)], [(0, 1), (1, 5)], [("a",), ("b",)], id="a gap in one"),
        pytest.param([(0, nan)], [(0, 1)], [("b",)], id="nothing known of one"),
    ],
)
def test_curves_that_look_the_same_are_one(
    first: list[tuple[float, float]], second: list[tuple[float, float]], names: list[tuple[str, ...]]
) -> None:
    assert [curve.names for curve in curves({"a": first, "b": second}, ["a", "b"])] == names


def test_the_first_28_curves_differ_without_colour() -> None:
    drawn = [Curve((number,), ("",), ((0.0, 0.0),)) for number in range(28)]
    assert len({(curve.style.split()[1], curve.marker) for curve in drawn}) == 28


def test_a_curve_is_broken_where_nothing_is_known_and_ends_where_the_plot_does() -> None:
    (curve,) = curves({"a": [(0, 0), (1, 10), (2, nan), (3, 10), (4, 0), (9, 5)]}, ["a"])
    plot = Plot("", "", Axis("", 0, 4), Axis("", 0, 10), (curve,))
    assert plot.path(curve) == "M0.0 1000.0L250.0 0.0M750.0 0.0L1000.0 1000.0"


def test_a_step_keeps_its_value_until_the_next() -> None:
    assert steps([(0.0, 1.0), (2.0, 3.0)]) == ((0.0, 1.0), (2.0, 1.0), (2.0, 3.0))


def test_of_ten_thousand_points_as_many_as_can_be_seen_are_kept_with_both_ends() -> None:
    points = [(float(number), number / 10_000) for number in range(10_000)]
    kept = steps(points)
    assert len(kept) < 300
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_means_over_time_hold_each_value_until_the_next() -> None:
    assert means_over_time([(0.0, 4.0), (3.0, 0.0)], 4.0, buckets=2) == ((1.0, 4.0), (3.0, 2.0))


@given(st.lists(st.tuples(st.floats(0, 99), st.floats(0, 50)), min_size=1, max_size=20), st.integers(1, 40))
def test_means_over_time_keep_the_sum(points: list[tuple[float, float]], buckets: int) -> None:
    ordered = sorted({round(at, 3): value for at, value in points}.items())
    width = (100.0 - ordered[0][0]) / buckets
    ends = [*(at for at, _ in ordered[1:]), 100.0]
    area = sum(value * (end - at) for (at, value), end in zip(ordered, ends, strict=True))
    means = means_over_time(ordered, 100.0, buckets)
    assert sum(value * width for _, value in means) == pytest.approx(area, abs=1e-6)


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        pytest.param(30.0, "now", id="within the minute"),
        pytest.param(HOUR, "13:00", id="today"),
        pytest.param(DAY, "Sun 12:00", id="tomorrow"),
        pytest.param(9 * DAY, "12 Jan", id="after these days"),
        pytest.param(None, "later", id="after what is looked ahead to"),
    ],
)
def test_a_time_is_told_by_the_clock(ahead: float | None, told: str) -> None:
    noon = datetime(2026, 1, 3, 12).timestamp()  # a Saturday, where the test runs
    assert clock_time(None if ahead is None else noon + ahead, noon) == told


def test_a_page_allows_its_own_style_and_script_and_nothing_else() -> None:
    page = render_page("comparison.html", title="<b>&", written="today")
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    told = dict(part.split(" ", 1) for part in policy.replace("&#39;", "'").split("; "))
    assert told["default-src"] == told["base-uri"] == told["form-action"] == "'none'"
    for tag, source in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(sha256(content.encode()).digest()).decode()
        assert told[source] == f"'sha256-{digest}'"
    assert " style=" not in page
    assert "<title>&lt;b&gt;&amp;</title>" in page
