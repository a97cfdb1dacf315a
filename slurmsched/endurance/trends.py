"""Whether what a long run measures stays flat: the rule, and the slope with its confidence.

The rule is chosen before a run, not after it. What was measured after the warm-up is cut into three equal times; it
grows if the median of the last third is above that of the middle third by more than `TOLERANCE` and by more than the
resolution of the measure. The slope is that of Theil and Sen, the median of the slopes of all pairs of points (Sen,
"Estimates of the regression coefficient based on Kendall's tau", 1968), which single peaks do not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import median
from typing import Final

import numpy as np

TOLERANCE: Final = 0.10
"""Relative growth from the middle third to the last from which on a measure grows."""

_LEAST_PER_THIRD: Final = 8
"""Measured points in each third that the rule needs."""

_MOST_POINTS: Final = 400
"""Points of which all pairs are taken."""

_CONFIDENCE: Final = 0.95

_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Trend:
    """What became of a measure after the warm-up, in `unit`: the medians of the three thirds of that time, and the
    slope per day with the bounds of its 95 % confidence. All are NaN without points.

    `grows` is None if there are too few points to tell.
    """

    measure: str
    unit: str
    thirds: tuple[float, float, float]
    slope: float
    slope_low: float
    slope_high: float
    points: int
    grows: bool | None


def find_trend(
    measure: str, unit: str, points: Sequence[tuple[float, float]], *, warm_up: float, resolution: float
) -> Trend:
    """Return the trend of `points`, each a time in seconds since the start and a value, ascending in time.

    Points before `warm_up` seconds count for nothing; growth of less than `resolution` is none.
    """
    counted = [point for point in points if point[0] >= warm_up]
    if not counted:
        return Trend(measure, unit, (nan, nan, nan), nan, nan, nan, 0, None)
    begin, end = counted[0][0], counted[-1][0]
    thirds: tuple[list[float], list[float], list[float]] = ([], [], [])
    for at, value in counted:
        part = (at - begin) / (end - begin) if end > begin else 0.0
        thirds[min(int(3 * part), 2)].append(value)
    first, middle, last = (median(third) if third else nan for third in thirds)
    enough = min(map(len, thirds)) >= _LEAST_PER_THIRD
    grows = last - middle > max(TOLERANCE * abs(middle), resolution) if enough else None
    return Trend(measure, unit, (first, middle, last), *_slope(counted), len(counted), grows)


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the slope per day, and the bounds of its confidence; NaN for fewer than three points."""
    from scipy.stats import theilslopes  # noqa: PLC0415 (slow to import for commands that need it not)

    if len(points) < 3:  # noqa: PLR2004 two points are no trend
        return nan, nan, nan
    chosen = np.array(points, dtype=np.float64)[:: -(-len(points) // _MOST_POINTS)]
    found = theilslopes(chosen[:, 1], chosen[:, 0] / _DAY, alpha=_CONFIDENCE)
    return float(found[0]), float(found[2]), float(found[3])
