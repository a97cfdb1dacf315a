"""The analytic centre, against centres that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from slurmsched.policies.gavel.interior_point import Polytope, analytic_centre


def polytope(rows: list[list[float]], limits: list[float], times: list[float] | None = None) -> Polytope:
    known = csr_matrix(np.array(rows))
    counts = np.ones(known.shape[1]) if times is None else np.array(times)
    return Polytope(known, np.array(limits), counts, np.ones(known.shape[0]))


@pytest.mark.parametrize(
    ("rows", "limits", "times", "expected"),
    [
        pytest.param([[1.0]], [2.0], None, [1.0], id="the middle of a line"),
        pytest.param([[1.0, 1.0]], [1.0], None, [1 / 3, 1 / 3], id="the middle of a triangle"),
        pytest.param([[1.0, 0.0], [0.0, 1.0]], [2.0, 4.0], None, [1.0, 2.0], id="the middle of a box"),
        pytest.param([[1.0]], [3.0], [2.0], [2.0], id="a bound that counts twice is kept away from"),
        pytest.param([[1.0], [-1.0]], [1.0, -0.999999], None, [1.0], id="a sliver"),
    ],
)
def test_the_centre(
    rows: list[list[float]], limits: list[float], times: list[float] | None, expected: list[float]
) -> None:
    found = analytic_centre(polytope(rows, limits, times), np.full(len(rows[0]), 0.7))
    assert found == pytest.approx(expected, rel=1e-3)


def test_what_has_no_inside_has_no_centre() -> None:
    assert analytic_centre(polytope([[1.0], [-1.0]], [1.0, -2.0]), np.ones(1)) is None
