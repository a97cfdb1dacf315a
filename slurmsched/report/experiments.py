"""Terminal views of an experiment: measured against published figures, and its curves as sparklines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from slurmsched.experiments.experiment import Bound, ExperimentResult, FigureRow
from slurmsched.model.reasons import pluralise
from slurmsched.report.tables import Column, Listing

_LEVEL_SIGNS: Final = (" ▁▂▃▄▅▆▇█", " .:-=+*#%")
_LISTED_VALUES: Final = 7
"""Curves of at most this many points are printed as numbers rather than drawn."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A step curve drawn in `width` characters, each the curve's mean over its interval, scaled from 0 to `top`."""

    points: Points
    top: float
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = _LEVEL_SIGNS[options.ascii_only]
        levels = self._means() / self.top if self.top > 0 else np.zeros(self.width)
        highest = len(signs) - 1
        line = "".join(signs[int(np.ceil(min(max(level, 0.0), 1.0) * highest - 0.5))] for level in levels)
        yield Text(line, style="green")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)

    def _means(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The curve's mean in each of `width` equal intervals of x; the last point only ends the curve."""
        x, y = (np.array(values, dtype=np.float64) for values in zip(*self.points, strict=True))
        area = np.concatenate([[0.0], np.cumsum(np.diff(x) * y[:-1])])
        edges = np.linspace(x[0], x[-1], self.width + 1)
        means: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(np.interp(edges, x, area)) / np.diff(edges)
        return means


def curves_listing(series: Mapping[str, Points]) -> Listing:
    """One row per curve: first and last x, the largest value, and the curve scaled from 0 to that."""
    columns = (Column("CURVE"), Column("FROM", right=True), Column("TO", right=True), Column("MOST", right=True))
    rows = [
        (name, f"{points[0][0]:.5g}", f"{points[-1][0]:.5g}", f"{_largest_value(points):.3g}", _sparkline(points))
        for name, points in series.items()
        if points
    ]
    return Listing((*columns, Column("COURSE")), rows, wrapped=True)


def _sparkline(points: Points) -> Sparkline | str:
    if len(points) <= _LISTED_VALUES or points[0][0] == points[-1][0]:
        return " ".join(f"{value:.3g}" for _, value in points[:_LISTED_VALUES])
    return Sparkline(points, _largest_value(points))


def _largest_value(points: Points) -> float:
    return max(value for _, value in points)


_BOUND_SIGNS = {Bound.EQUAL: "±", Bound.AT_MOST: "≤", Bound.AT_LEAST: "≥"}


def outcome_view(outcome: ExperimentResult) -> RenderableType:
    """One line per figure and per curve, the notes on differing inputs, and the verdict."""
    columns = (
        Column("FIGURE"),
        Column("UNIT"),
        Column("PAPER", right=True),
        Column("THEIRS", right=True),
        Column("OURS", right=True),
        Column("RATIO", right=True),
        Column("ASKED", right=True),
        Column("OK"),
    )
    rows = [
        (
            row.metric,
            row.unit,
            _figure(row.published),
            _figure(row.reference),
            _figure(row.measured),
            _figure(row.ratio),
            _required_ratio(row),
            "" if row.bound is Bound.INFORMATIVE else "yes" if row.ok else "NO",
        )
        for row in outcome.rows
    ]
    required = [row for row in outcome.rows if row.bound is not Bound.INFORMATIVE]
    met = sum(row.ok for row in required)
    verdict = f"{outcome.experiment}: {met} of {pluralise(len(required), 'figure')} within bounds."
    curves = (Text(""), curves_listing(outcome.series)) if outcome.series else ()
    return Group(Listing(columns, rows, wrapped=True, shrinking=0), *curves, *_notes(outcome), Text(f"\n{verdict}"))


def _notes(outcome: ExperimentResult) -> Iterator[RenderableType]:
    """Each note once, with the figures that it applies to."""
    metrics_by_note = dict[str, list[str]]()
    for row in outcome.rows:
        if row.note:
            metrics_by_note.setdefault(row.note, []).append(row.metric)
    for note, metrics in metrics_by_note.items():
        shown = metrics[0] if len(metrics) == 1 else f"{metrics[0]} and {len(metrics) - 1} more"
        yield Text(f"\n{shown}:")
        yield Padding(Text(note), (0, 0, 0, 2), expand=False)


def _required_ratio(row: FigureRow) -> str:
    if row.bound is Bound.INFORMATIVE:
        return "-"
    return f"{_BOUND_SIGNS[row.bound]}{100 * (row.tolerance or 0.0):.3g}%" if row.bound is Bound.EQUAL else _limit(row)


def _limit(row: FigureRow) -> str:
    slack = row.tolerance or 0.0
    return f"{_BOUND_SIGNS[row.bound]}{1 + slack if row.bound is Bound.AT_MOST else 1 - slack:.3g}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
