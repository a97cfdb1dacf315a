"""Slurm's feature constraints."""

from __future__ import annotations

import pytest

from slurmsched.policies import PolicyError
from slurmsched.policies.cluster.eligibility import parse_constraint


@pytest.mark.parametrize(
    ("text", "features", "accepted"),
    [
        pytest.param("", "", [True], id="no constraint"),
        pytest.param("v100", "v100 nvlink", [True], id="a feature the node has"),
        pytest.param("v100", "a100", [False], id="a feature it lacks"),
        pytest.param("v100&nvlink", "v100", [False], id="both"),
        pytest.param("v100,nvlink", "v100 nvlink", [True], id="a comma is an and"),
        pytest.param("v100|a100", "a100", [True], id="either"),
        pytest.param("v100|a100&nvlink", "v100", [False], id="from left to right: and binds no closer than or"),
        pytest.param("nvlink&v100|a100", "a100", [True], id="from left to right, the other way round"),
        pytest.param("v100|(a100&nvlink)", "v100", [True], id="parentheses bind"),
        pytest.param("(v100|a100)&nvlink", "v100", [False], id="parentheses"),
        pytest.param("rack-1.a & ib", "rack-1.a ib", [True], id="dashes, dots and spaces"),
        pytest.param("[r1|r2|r3]", "r2", [False, True, False], id="alternatives: all nodes have the same one"),
        pytest.param("[r1]", "r1", [True], id="one alternative"),
        pytest.param("[(r1&ib)|r2]", "r1 ib", [True, False], id="an alternative of several features"),
    ],
)
def test_a_node_is_accepted_by_its_features(text: str, features: str, accepted: list[bool]) -> None:
    assert [accepts(frozenset(features.split())) for accepts in parse_constraint(text)] == accepted


@pytest.mark.parametrize(
    "text",
    [
        "[a*2&b*1]", "[a&b]", "a*2", "[a|b]&c", "c&[a|b]", "[a|b", "a|b]", "[]", "[[a]|b]", "[a|b][c]",
        "a&", "(a", "a)", "a b", "|", "!a", "a" * 2000 + "&!", "(" * 400 + "a" + ")" * 400, "[" * 400 + "a" + "]" * 400,
    ],
)  # fmt: skip
def test_what_cannot_be_decided_by_features_alone_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="is not of the form"):
        parse_constraint(text)
