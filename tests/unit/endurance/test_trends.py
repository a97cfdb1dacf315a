"""What grows and what does not, by the rule that was chosen before."""

from __future__ import annotations

from math import isnan
from random import Random

import pytest

from slurmsched.endurance import Trend, find_trend

DAY, HOUR = 86400.0, 3600.0


def trend(values: list[float], *, warm_up: float = 0.0, resolution: float = 0.0) -> Trend:
    """Of values an hour apart."""
    points = [(hour * HOUR, value) for hour, value in enumerate(values)]
    return find_trend("memory", "MB", points, warm_up=warm_up, resolution=resolution)


def test_what_stays_the_same_is_flat() -> None:
    found = trend([100.0] * 72)
    assert (found.grows, found.slope, found.thirds) == (False, 0.0, (100.0, 100.0, 100.0))


def test_a_leak_of_a_tenth_from_one_third_to_the_next_grows() -> None:
    assert trend([100.0 + hour for hour in range(72)]).grows is True


def test_a_slower_leak_has_a_slope_though_it_is_within_the_tolerance() -> None:
    found = trend([100.0 + hour / 24 for hour in range(72)])
    assert found.grows is False
    assert found.slope == pytest.approx(1.0), "MB a day"
    assert found.slope_low > 0


def test_what_gets_less_does_not_grow() -> None:
    assert trend([200.0 - hour for hour in range(72)]).grows is False


def test_growth_before_the_end_of_the_warm_up_counts_for_nothing() -> None:
    values = [float(min(hour, 48)) for hour in range(144)]
    assert trend(values[:72]).grows is True
    found = trend(values, warm_up=48 * HOUR)
    assert (found.grows, found.points) == (False, 96)


def test_single_peaks_are_no_growth_and_no_slope() -> None:
    found = trend([1000.0 if hour % 10 == 9 and hour > 60 else 100.0 for hour in range(90)])
    assert (found.grows, found.slope) == (False, 0.0)


def test_noise_without_a_trend_has_a_slope_whose_bounds_are_around_zero() -> None:
    random = Random(3)  # noise, no secret
    found = trend([100.0 + random.gauss(0.0, 2.0) for _ in range(240)])
    assert found.grows is False
    assert found.slope_low < 0 < found.slope_high


def test_less_than_the_resolution_is_no_growth() -> None:
    values = [4.0 + hour / 48 for hour in range(72)]
    assert trend(values).grows is True
    assert trend(values, resolution=1.0).grows is False


@pytest.mark.parametrize("count", [0, 1, 2, 12, 23])
def test_too_few_points_tell_nothing(count: int) -> None:
    found = trend([float(hour) for hour in range(count)])
    assert found.grows is None
    assert isnan(found.slope) == (count < 3)
