"""Speed between and outside the measured points, floors and demands."""

from __future__ import annotations

import pytest

from slurmsched.knowledge import SensitivityMatrix

CACHED = SensitivityMatrix((1, 3, 6, 12), (20, 60, 120), ((1, 1, 1), (2, 3, 3), (2, 5, 6), (2, 5, 6)))
CPUS_ONLY = SensitivityMatrix((1, 3, 9), (), ((1,), (3,), (6,)))
LANGUAGE = SensitivityMatrix((1, 3, 12), (), ((5,), (5,), (5,)))


@pytest.mark.parametrize(
    ("cpus", "memory", "speed"),
    [
        pytest.param(3, 60, 3, id="a measured point"),
        pytest.param(2, 60, 2, id="half way between two CPU points"),
        pytest.param(6, 90, 5.5, id="half way between two memory points"),
        pytest.param(4.5, 40, 3, id="between four points"),
        pytest.param(0.5, 60, 1, id="below the first point it is flat"),
        pytest.param(48, 900, 6, id="beyond the last point it is flat"),
    ],
)
def test_speed_is_linear_between_measured_points(cpus: float, memory: float, speed: float) -> None:
    assert CACHED.speed_at(cpus, memory) == pytest.approx(speed)


def test_memory_that_was_not_measured_changes_nothing() -> None:
    assert CPUS_ONLY.speed_at(3, 1) == CPUS_ONLY.speed_at(3, 10_000) == 3
    assert not CPUS_ONLY.knows_memory


@pytest.mark.parametrize(
    ("matrix", "share", "floor"),
    [
        pytest.param(LANGUAGE, (3, 60), (1, 60), id="a language job does with the fewest CPUs that were measured"),
        pytest.param(CPUS_ONLY, (3, 60), (3, 60), id="a CPU-hungry job needs its whole share"),
        pytest.param(CPUS_ONLY, (30, 60), (9, 60), id="a share beyond saturation is not needed"),
        pytest.param(CACHED, (3, 120), (3, 60), id="memory that brings nothing is not needed"),
        pytest.param(CACHED, (0.5, 10), (0.5, 10), id="a share below every measured point stands as it is"),
    ],
)
def test_the_floor_is_the_least_that_is_as_fast_as_the_share(
    matrix: SensitivityMatrix, share: tuple[float, float], floor: tuple[float, float]
) -> None:
    assert matrix.minimum_for_share(*share) == floor


@pytest.mark.parametrize(
    ("matrix", "caps", "demand"),
    [
        pytest.param(CACHED, (24, 500), (6, 120), id="the first point that is as fast as all the server"),
        pytest.param(CACHED, (24, 60), (6, 60), id="with little memory more CPUs would be idle"),
        pytest.param(CPUS_ONLY, (6, 60), (6, 60), id="not saturated below the cap: all of it"),
        pytest.param(LANGUAGE, (24, 60), (1, 60), id="a language job wants one CPU"),
        pytest.param(
            SensitivityMatrix((1, 3, 6), (), ((1.0,), (2.0,), (2.01,))),
            (24, 60),
            (3, 60),
            id="less than one percent more speed is not worth twice the CPUs",
        ),
        pytest.param(
            SensitivityMatrix((1, 3, 6), (), ((1.0,), (2.0,), (1.5,))),
            (24, 60),
            (3, 60),
            id="where more CPUs were slower the best point is meant",
        ),
    ],
)
def test_the_demand_is_the_minimum_that_saturates_speed(
    matrix: SensitivityMatrix, caps: tuple[float, float], demand: tuple[float, float]
) -> None:
    assert matrix.best_case_demand(*caps) == demand
