"""HTML pages of one file, with plots as SVG: what they share.

A page loads nothing: its style and its script are in it, and its Content-Security-Policy allows these two by their
digests and nothing else. Everything that is drawn is in the file, so that plots are there without the script too, which
adds what the mouse shows and hides. Text in a plot has the same size at every width: places are parts of the width.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from math import ceil, floor, isfinite, isnan, log10
from typing import Final

from slurmsched import __version__
from slurmsched.report.quantities import duration
from slurmsched.template_files import render

Point = tuple[float, float]

_MOST_POINTS: Final = 240
"""Points of a curve that are drawn: more than there are dots on a phone."""
_MARKERS_PER_CURVE: Final = 5
_COLOURS, _DASHES, _MARKERS = 8, 4, 7
"""What the style defines: curves 1 to 28 differ in dashes or marker, whatever the colour."""
_APART: Final = 0.17
"""Part of the width between two labels of an axis, at least: 45 pixels of a phone."""
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def render_page(template: str, **values: object) -> str:
    """Returns the page that this template of `page.html` makes, with version and time of writing. Every text in it is
    escaped. Raises RenderingError."""
    style, script = render("page.css"), render("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    return render(template, style=style, script=script, security_policy=policy, version=__version__, **values)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def written_at(at: float) -> str:
    """When a page was written, for people: local time to the minute, with its zone."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M %Z}"


def clock_time(at: float | None, now: float) -> str:
    """A time of the clock as short as it is clear: `14:20` of today, `Tue 14:20` of these days, `27 Sep`; `later` for
    None, which is after what is looked ahead to."""
    if at is None:
        return "later"
    if at - now < _MINUTE:
        return "now"
    when, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    if when.date() == today.date():
        return f"{when:%H:%M}"
    return f"{when:%a %H:%M}" if at - now < _WEEKDAYS else f"{when.day} {when:%b}"


_WEEKDAYS: Final = 6 * _DAY


class Unit(StrEnum):
    """What the numbers of an axis are."""

    NUMBER = "number"
    DURATION = "duration"
    """Seconds."""
    PERCENT = "percent"
    """Fractions of 1."""
    TIME = "time"
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The values from `low` to `high`, which are not the same, by their logarithm if `log`."""

    label: str
    low: float
    high: float
    unit: Unit = Unit.NUMBER
    log: bool = False

    def place(self, value: float) -> float:
        """Where the value is, as a part of the axis; what is outside is at its end."""
        if self.log:
            value = max(value, self.low)
            part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(max(part, 0.0), 1.0)

    def ticks(self) -> Sequence[tuple[float, str]]:
        """Places and labels of at most seven ticks, which leave room for each other on a phone."""
        chosen = dict[float, str]()
        room = 1.0 - _APART / 3 if self.unit is Unit.TIME else 1.0  # dates are too long to stand at the end
        for candidates in self._candidates():
            for value, label in candidates:
                place = self.place(value)
                if (
                    self.low <= value <= self.high
                    and place <= room
                    and all(abs(place - other) >= _APART for other in chosen)
                ):
                    chosen[place] = label
        return sorted(chosen.items())

    def _candidates(self) -> Iterator[Iterable[tuple[float, str]]]:
        """Yields ticks with their labels, the roundest first."""
        if self.unit is Unit.DURATION and self.log:
            for durations in _DURATIONS:
                yield [(seconds, duration(seconds)) for seconds in durations]
        elif self.log:
            decades = [10.0**power for power in range(floor(log10(self.low)), ceil(log10(self.high)) + 1)]
            for factor in (1, 3, 2, 5):
                yield [(factor * decade, f"{factor * decade:g}") for decade in decades]
        elif self.unit is Unit.TIME:
            yield _times(self.low, self.high)
        else:
            yield self._even_ticks()

    def _even_ticks(self) -> Iterator[tuple[float, str]]:
        unit, suffix = next((pair for pair in _SCALES[self.unit] if self.high >= _UNITS_AT_LEAST * pair[0]), (1.0, ""))
        if not suffix and self.unit is not Unit.NUMBER:
            unit, suffix = _SCALES[self.unit][-1]
        step = unit * _nice_step((self.high - self.low) / unit)
        for count in range(ceil(self.low / step), floor(self.high / step + 1e-9) + 1):
            yield count * step, f"{round(count * step / unit, 6):g}{suffix}"


_UNITS_AT_LEAST: Final = 2.0
"""An axis is labelled in a unit if it has two of them."""
_SCALES: Final[Mapping[Unit, Sequence[tuple[float, str]]]] = {
    Unit.NUMBER: ((1.0, ""),),
    Unit.PERCENT: ((0.01, " %"),),
    Unit.DURATION: ((_DAY, " d"), (_HOUR, " h"), (_MINUTE, " min"), (1.0, " s")),
}
_DURATIONS: Final = (
    (1, 10, _MINUTE, 10 * _MINUTE, _HOUR, 10 * _HOUR, 2 * _DAY, 20 * _DAY, 200 * _DAY),
    (3, 30, 3 * _MINUTE, 30 * _MINUTE, 3 * _HOUR, _DAY, 5 * _DAY, 50 * _DAY),
    (2, 5, 2 * _MINUTE, 5 * _MINUTE, 20 * _MINUTE, 2 * _HOUR, 6 * _HOUR, 4 * _DAY, 10 * _DAY, 100 * _DAY),
)
_MOST_TICKS: Final = 5


def _nice_step(span: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and their decades by which at most five steps make the span."""
    decade = 10.0 ** floor(log10(span / _MOST_TICKS))
    return next(factor * decade for factor in (1, 2, 2.5, 5, 10) if span / (factor * decade) <= _MOST_TICKS)


_TIME_STEPS: Final = (300, 900, 1800, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 28 * _DAY)


def _times(low: float, high: float) -> Iterator[tuple[float, str]]:
    step = next((step for step in _TIME_STEPS if (high - low) / step <= _MOST_TICKS), _TIME_STEPS[-1])
    offset = datetime.fromtimestamp(high).astimezone().utcoffset()
    east = offset.total_seconds() if offset else 0.0
    for count in range(ceil((low + east) / step), floor((high + east) / step) + 1):
        at = count * step - east
        yield at, f"{datetime.fromtimestamp(at):{'%d %b' if step >= _DAY else '%a %H:%M'}}"


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn of the `series`, which are numbered over the whole page: several have the same values. Where a y is
    NaN the curve is broken."""

    series: tuple[int, ...]
    names: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @property
    def label(self) -> str:
        """What stands beside a point."""
        first, *others = self.names
        return f"{first} +{len(others)}" if others else first

    @property
    def style(self) -> str:
        """The classes of its colour, its dashes and its marker."""
        number = self.series[0]
        return f"s{number % _COLOURS} d{number % _DASHES}"

    @property
    def marker(self) -> str:
        return f"m{self.series[0] % _MARKERS}"

    @property
    def ids(self) -> str:
        return " ".join(map(str, self.series))


def curves(values: Mapping[str, Sequence[Point]], names: Sequence[str]) -> tuple[Curve, ...]:
    """Returns a curve for each name of the page that has points here, one for all that nobody could tell apart."""
    found = list[tuple[tuple[Point, ...], list[int]]]()
    for number, name in enumerate(names):
        points = tuple(values.get(name, ()))
        same = (series for other, series in found if _look_alike(other, points))
        if any(isfinite(y) for _, y in points):
            if series := next(same, None):
                series.append(number)
            else:
                found.append((points, [number]))
    return tuple(Curve(tuple(equal), tuple(names[one] for one in equal), points) for points, equal in found)


_SEEN: Final = 1 / 400
"""Part of the largest value by which curves must differ to be seen apart."""


def _look_alike(one: Sequence[Point], other: Sequence[Point]) -> bool:
    if len(one) != len(other):
        return False
    wide, high = (max((abs(p[axis]) for p in (*one, *other) if isfinite(p[axis])), default=0.0) for axis in (0, 1))
    return all(
        abs(a[0] - b[0]) <= _SEEN * wide and (a[1] == b[1] or abs(a[1] - b[1]) <= _SEEN * high)
        for a, b in zip(one, other, strict=True)
        if not (isnan(a[1]) and isnan(b[1]))
    )


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves, or points if not `joined`. `caption` is also the text alternative. `x_level` and `y_level` are lines to
    compare with, and their meaning. `labelled` are series whose names stand beside their points."""

    title: str
    caption: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    joined: bool = True
    x_level: tuple[float, str] | None = None
    y_level: tuple[float, str] | None = None
    labelled: frozenset[int] = frozenset()
    pale: frozenset[int] = frozenset()
    """Series that are no better than another one."""
    categories: tuple[str, ...] = ()
    """Names of the places 0, 1, 2, ... of the y axis, in place of its numbers."""

    def names_beside(self, curve: Curve) -> bool:
        return not self.labelled.isdisjoint(curve.series)

    def is_pale(self, curve: Curve) -> bool:
        return self.pale.issuperset(curve.series)

    @property
    def notes(self) -> Iterator[str]:
        """Who has the same values as another."""
        for curve in self.curves:
            first, *others = curve.names
            if others:
                yield f"{' and '.join(others)} {'look' if len(others) > 1 else 'looks'} the same as {first} here."

    @property
    def x_ticks(self) -> Iterator[tuple[str, str]]:
        for place, label in self.x.ticks():
            yield _percent(place), label

    @property
    def y_ticks(self) -> Iterator[tuple[str, str]]:
        if self.categories:
            for index, name in enumerate(self.categories):
                yield _percent(1 - self.y.place(index)), name
            return
        for place, label in self.y.ticks():
            yield _percent(1 - place), label

    @property
    def x_level_place(self) -> str:
        return _percent(self.x.place(self.x_level[0])) if self.x_level else ""

    @property
    def y_level_place(self) -> str:
        return _percent(1 - self.y.place(self.y_level[0])) if self.y_level else ""

    def path(self, curve: Curve) -> str:
        """The curve in a square of 1000 by 1000, from the top."""
        drawn, joins = "", False
        for x, y in self._places(curve):
            if isfinite(y):
                drawn += f"{'L' if joins else 'M'}{1000 * x:.1f} {1000 * (1 - y):.1f}"
            joins = isfinite(y)
        return drawn

    def markers(self, curve: Curve) -> Iterator[tuple[str, str]]:
        """Places of some markers along the curve; no two curves have them at the same x."""
        places = [place for place in self._places(curve) if isfinite(place[1])]
        if not self.joined:
            yield from ((_percent(x), _percent(1 - y)) for x, y in places)
            return
        shift = (1 + curve.series[0] % (2 * _COLOURS)) / (2 * _COLOURS + 1)
        for number in range(_MARKERS_PER_CURVE):
            at = bisect_left(places, ((number + shift) / _MARKERS_PER_CURVE, 0.0))
            if at < len(places):
                x, y = places[at]
                yield _percent(x), _percent(1 - y)

    def _places(self, curve: Curve) -> Iterator[Point]:
        """The places of its points, each as parts of the axes; what is right of the plot is left out."""
        for x, y in curve.points:
            if self.x.low <= x <= self.x.high or not self.joined:
                yield self.x.place(x), self.y.place(y) if isfinite(y) else y


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%"


def steps(points: Sequence[Point]) -> tuple[Point, ...]:
    """The corners of a curve that keeps a value until the next; no more of them than can be seen."""
    kept = points
    if len(points) > _MOST_POINTS // 2:
        stride = len(points) / _MOST_POINTS
        kept = [points[min(ceil((number + 1) * stride), len(points)) - 1] for number in range(_MOST_POINTS)]
        return (points[0], *kept)
    corners = [corner for before, after in pairwise(kept) for corner in (before, (after[0], before[1]))]
    return (*corners, *kept[-1:])


def means_over_time(points: Sequence[Point], until: float, buckets: int = 120) -> tuple[Point, ...]:
    """The means of a value over equal times, at their middles; each of the points holds until the next, the last one
    `until` then."""
    if not points or until <= points[0][0]:
        return tuple(points)
    start = points[0][0]
    width = (until - start) / buckets
    sums = [0.0] * buckets
    for (began, value), (ended, _) in pairwise((*points, (until, 0.0))):
        first, last = (min(int((at - start) / width), buckets - 1) for at in (began, ended))
        for bucket in range(first, last + 1):
            left, right = start + bucket * width, start + (bucket + 1) * width
            sums[bucket] += value * max(0.0, min(ended, right) - max(began, left))
    return tuple((start + (number + 0.5) * width, total / width) for number, total in enumerate(sums))
