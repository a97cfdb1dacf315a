"""Slurm's feature constraints."""

from __future__ import annotations

import pytest

from slurmsched.policies import PolicyError
from slurmsched.policies.cluster.eligibility import parse_constraint


@pytest.mark.parametrize(
    ("text", "features", "accepted"),
    [
        pytest.param("", "", True, id="no constraint"),
        pytest.param("v100", "v100 nvlink", True, id="a feature the node has"),
        pytest.param("v100", "a100", False, id="a feature it lacks"),
        pytest.param("v100&nvlink", "v100", False, id="both"),
        pytest.param("v100,nvlink", "v100 nvlink", True, id="a comma is an and"),
        pytest.param("v100|a100", "a100", True, id="either"),
        pytest.param("v100|a100&nvlink", "v100", True, id="and binds closer than or"),
        pytest.param("(v100|a100)&nvlink", "v100", False, id="parentheses"),
        pytest.param("rack-1.a & ib", "rack-1.a ib", True, id="dashes, dots and spaces"),
    ],
)
def test_a_node_is_accepted_by_its_features(text: str, features: str, accepted: bool) -> None:
    assert parse_constraint(text)(frozenset(features.split())) is accepted


@pytest.mark.parametrize(
    "text", ["[a|b]", "a*2", "a&", "(a", "a)", "a b", "|", "!a", "a" * 2000 + "&!", "(" * 400 + "a" + ")" * 400]
)
def test_what_cannot_be_decided_node_by_node_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="is not of the form"):
        parse_constraint(text)
