"""Where managed jobs may start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.backends.slurm.sbatch_options import let_go_reason
from slurmsched.model import NodeState, Partition, Request, Reservation
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.resources import Pools
from slurmsched.rounds.partitions import jobs_left_to_slurm, within_time_limits
from slurmsched.rounds.scope import eligible_nodes, partition_totals, usable_nodes
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
        pytest.param(
            {"time_limit": 60, "request": Request(gpus=1, pinned=frozenset({"soon"}))}, {"soon"}, id="the node it names"
        ),
        pytest.param(
            {"time_limit": 60, "request": Request(gpus=2, nodes=2, pinned=frozenset({"soon"}))},
            {"up", "soon"},
            id="the node it names and another",
        ),
        pytest.param(
            {"time_limit": 60, "request": Request(gpus=9, pinned=frozenset({"soon"}))},
            {"up", "soon"},
            id="the node it names and as many as its GPUs need",
        ),
    ],
)
def test_where_a_job_may_start(other: dict[str, object], nodes: set[str]) -> None:
    assert eligible_nodes(job(1, **other), SEEN, usable_nodes(SEEN)) == nodes


@pytest.mark.parametrize(
    ("named", "nodes"),
    [("works", {"n1"}), ("exam", {"n2"}), ("", {"n3"})],
    ids=["a job of the maintenance", "a job of a reservation that has one of the nodes too", "another job"],
)
def test_a_node_in_maintenance_is_closed_to_all_but_the_jobs_of_the_maintenance(named: str, nodes: set[str]) -> None:
    works = Reservation("works", frozenset({"n1"}), NOW - 5, NOW + 5, maintenance=True)
    exam = Reservation("exam", frozenset({"n1", "n2"}), NOW - 5, NOW + 5)
    asks = job(1, reservation=named)
    cluster = [node("n1", state_text="IDLE+MAINT"), node("n2"), node("n3")]
    seen = snapshot(cluster, [asks], NOW, reservations=(works, exam))
    pools = Pools(seen.nodes)
    [mask] = Eligibility(pools, seen, usable_nodes(seen)).pool_masks(asks)
    assert eligible_nodes(asks, seen, usable_nodes(seen)) == nodes
    assert {pools.node(pool).name for pool in range(len(pools)) if mask[pool]} == nodes


@pytest.mark.parametrize(
    ("reservation", "named", "words"),
    [
        pytest.param({"flex": True}, "course", "has the flag FLEX, so it may also start before", id="of a FLEX one"),
        pytest.param(
            {"flex": True, "start": NOW + 60}, "course", "has the flag FLEX", id="of a FLEX one that is to come"
        ),
        pytest.param({"flex": True}, "", "", id="of none, beside a FLEX one"),
        pytest.param(
            {"magnetic": True, "users": {"alice"}}, "", "reservation course, which has the flag MAGNETIC", id="a user's"
        ),
        pytest.param({"magnetic": True, "accounts": {"vision"}}, "", "flag MAGNETIC", id="an account's"),
        pytest.param({"magnetic": True}, "", "flag MAGNETIC", id="a group's"),
        pytest.param({"magnetic": True, "users": {"-bob"}}, "", "flag MAGNETIC", id="everybody else's"),
        pytest.param({"magnetic": True, "users": {"alice"}}, "course", "flag MAGNETIC", id="a user's that it names"),
        pytest.param({"magnetic": True, "users": {"alice"}}, "exam", "", id="a user's, where it names another"),
        pytest.param({"magnetic": True, "users": {"bob"}, "accounts": {"language"}}, "", "", id="that of others"),
        pytest.param({"magnetic": True, "nodes": {"n9"}}, "", "", id="with no node of its partition"),
        pytest.param({"magnetic": True, "start": NOW + 60}, "", "", id="to come"),
        pytest.param(
            {"magnetic": True, "flex": True, "start": NOW + 60},
            "",
            "flag MAGNETIC",
            id="both, and to come",
        ),
        pytest.param({"users": {"alice"}}, "course", "", id="one without flags"),
    ],
)
def test_a_job_that_may_run_in_a_reservation_and_outside_of_it_is_left_to_slurm(
    reservation: dict[str, Any], named: str, words: str
) -> None:
    sets = {key: frozenset(names) for key, names in reservation.items() if isinstance(names, set)}
    known = {"name": "course", "nodes": frozenset({"n1"}), "start": NOW - 5, "end": NOW + 500}
    course = Reservation(**{**known, **reservation, **sets})
    asks = job(1, user="alice", account="vision", reservation=named)
    left = jobs_left_to_slurm(snapshot([node("n1"), node("n2")], [asks], NOW, reservations=(course,)), {})
    assert [words in why.sentence for why in left.values()] == [True] * bool(words)


def test_the_words_of_a_flexible_reservation_are_those_of_the_table_of_options() -> None:
    course = Reservation("course", frozenset(), 0, NOW, flex=True)
    left = jobs_left_to_slurm(snapshot([], [job(1, reservation="course")], NOW, reservations=(course,)), {})
    assert left["1"].sentence == f"is not managed: {let_go_reason('--reservation=flex')}"


BIG = Partition("big", frozenset({"n1"}))
NARROW = Partition("narrow", frozenset({"n1", "n2"}), max_time=600, accounts=frozenset({"language"}))


@pytest.mark.parametrize(
    ("account", "limit", "partitions"),
    [
        pytest.param("language", 1200, ("big",), id="longer than one of them allows"),
        pytest.param("language", None, ("big",), id="without a limit"),
        pytest.param("language", 600, ("narrow", "big"), id="not longer"),
    ],
)
def test_a_job_is_planned_in_those_of_its_partitions_that_allow_its_time(
    account: str, limit: int | None, partitions: tuple[str, ...]
) -> None:
    asks = job(1, partitions=("narrow", "big"), account=account, time_limit=limit)
    seen = snapshot([node("n1"), node("n2")], [asks], partitions=(BIG, NARROW))
    [planned] = within_time_limits(seen).jobs
    assert planned.partitions == partitions
    assert not jobs_left_to_slurm(seen, partition_totals(seen))


def test_a_job_that_no_partition_allows_its_time_stays_as_it_is() -> None:
    seen = snapshot([node("n1")], [job(1, partitions=("narrow", "other"), time_limit=1200)], partitions=(NARROW,))
    assert within_time_limits(replace(seen, partitions=(NARROW, replace(NARROW, name="other")))).jobs == seen.jobs


@pytest.mark.parametrize(
    ("named", "left"),
    [(("narrow", "big"), True), (("big",), False), (("narrow",), False)],
    ids=["both", "big", "narrow"],
)
def test_a_job_that_one_of_its_partitions_does_not_admit_is_left_to_slurm(named: tuple[str, ...], left: bool) -> None:
    seen = snapshot([node("n1")], [job(1, partitions=named, account="vision")], partitions=(BIG, NARROW))
    told = [why.sentence for why in jobs_left_to_slurm(seen, partition_totals(seen)).values()]
    assert told == ["is not managed: its partition narrow does not admit its account or QOS"] * left
