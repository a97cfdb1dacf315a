"""An experiment's curves on a screen: a line of signs each, or its values where there are few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from slurmsched.report.listing import Column, Listing

__all__ = ["CurveLine", "curves_listing"]

_SIGNS: Final = (" ▁▂▃▄▅▆▇█", " .:-=+*#%")
_FEW: Final = 7
"""So many values are told rather than drawn."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A curve of steps, each from its point to the next, from 0 to `top`; every sign is the mean of its part."""

    points: Points
    top: float
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = _SIGNS[options.ascii_only]
        part = self._means() / self.top if self.top > 0 else np.zeros(self.width)
        most = len(signs) - 1
        yield Text("".join(signs[int(np.ceil(min(max(one, 0.0), 1.0) * most - 0.5))] for one in part), style="green")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)

    def _means(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """By part of the way from the first point to the last, which as the end of the curve lasts no time itself."""
        x, y = (np.array(values, dtype=np.float64) for values in zip(*self.points, strict=True))
        area = np.concatenate([[0.0], np.cumsum(np.diff(x) * y[:-1])])
        edges = np.linspace(x[0], x[-1], self.width + 1)
        found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(np.interp(edges, x, area)) / np.diff(edges)
        return found


def curves_listing(series: Mapping[str, Points]) -> Listing:
    """A row for each curve: where it begins and ends, its largest value, and its course from 0 to that."""
    columns = (Column("CURVE"), Column("FROM", right=True), Column("TO", right=True), Column("MOST", right=True))
    rows = [
        (name, f"{points[0][0]:.5g}", f"{points[-1][0]:.5g}", f"{_most(points):.3g}", _course(points))
        for name, points in series.items()
        if points
    ]
    return Listing((*columns, Column("COURSE")), rows, wrapped=True)


def _course(points: Points) -> CurveLine | str:
    if len(points) <= _FEW or points[0][0] == points[-1][0]:
        return " ".join(f"{value:.3g}" for _, value in points[:_FEW])
    return CurveLine(points, _most(points))


def _most(points: Points) -> float:
    return max(value for _, value in points)
