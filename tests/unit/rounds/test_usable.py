"""Where managed jobs may start."""

from __future__ import annotations

import pytest

from slurmsched.model import NodeState, Partition, Reservation
from slurmsched.rounds.scope import eligible_nodes, exclude_reserved_nodes, usable_nodes
from tests.builders import job, node, snapshot

NOW = 10_000.0
NAMES = ("up", "drained", "down", "reserved", "soon")
NODES = [
    node("up"),
    node("drained", state=NodeState.DRAINED),
    node("down", state=NodeState.DOWN),
    node("reserved"),
    node("soon"),
]
SEEN = snapshot(
    NODES,
    time=NOW,
    partitions=(
        Partition("gpu", frozenset(NAMES)),
        Partition("small", frozenset({"up", "down"})),
        Partition("closed", frozenset(NAMES), up=False),
    ),
    reservations=(
        Reservation("exam", frozenset({"reserved", "down"}), NOW - 5, NOW + 5),
        Reservation("course", frozenset({"soon"}), NOW + 3600, NOW + 7200),
    ),
)


def test_usable_nodes_are_up_in_an_open_partition_and_reserved_for_nobody() -> None:
    assert usable_nodes(SEEN) == {
        "gpu": frozenset({"up", "soon"}),
        "small": frozenset({"up"}),
        "closed": frozenset(),
    }


@pytest.mark.parametrize(
    ("other", "nodes"),
    [
        pytest.param({"time_limit": 3600}, {"up", "soon"}, id="a job that ends before the reservation begins"),
        pytest.param({"time_limit": 3601}, {"up"}, id="a job that would run into it"),
        pytest.param({}, {"up"}, id="a job without a limit would run into it"),
        pytest.param(
            {"reservation": "exam"}, {"reserved"}, id="a job of the reservation has just its nodes that are up"
        ),
        pytest.param({"reservation": "course"}, set(), id="a reservation that is not active yet has none"),
        pytest.param({"partitions": ("small", "closed")}, {"up"}, id="several partitions together"),
    ],
)
def test_where_a_job_may_start(other: dict[str, object], nodes: set[str]) -> None:
    assert eligible_nodes(job(1, **other), SEEN, usable_nodes(SEEN)) == nodes


def test_policies_see_nodes_of_a_coming_reservation_as_excluded() -> None:
    assert exclude_reserved_nodes(job(1), SEEN).original_request.excluded == {"soon"}
    short = job(1, time_limit=60)
    assert exclude_reserved_nodes(short, SEEN) is short
