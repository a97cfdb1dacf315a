"""The placing rule, against a plain form of itself and in rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.model import Job, Node, NodeState, Request, Reservation
from slurmsched.policies import policy
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.place.placement import CONSOLIDATED, find_placement
from slurmsched.policies.sizes import AsRequested, Proportional
from slurmsched.policies.stages import Situation
from tests.builders import GIB, job, node, situation, snapshot


def placed(asked: Situation, one: Job) -> dict[str, int] | None:
    """GPUs by node where the job would lie on its proportional share."""
    ledger = FreeResources.of_snapshot(asked.snapshot)
    grounds = Eligibility(ledger.pools, asked.snapshot, asked.open_nodes)
    wish = DemandCache(ledger.pools, grounds, asked.knowledge, Proportional()).of(one)
    found = find_placement(wish, DemandLevel.MINIMUM, ledger, CONSOLIDATED)
    return found and {share.node: share.resources.gpus for share in found.node_allocations(ledger.pools)}


def plainly(nodes: list[Node], gpus: int, cpus: int, memory: int) -> str | None:
    """The server with the least free resources just enough, the first of equals."""
    fitting = [
        (one.free.gpus, one.free.cpus, one.free.memory, at)
        for at, one in enumerate(nodes)
        if one.free.gpus >= gpus and one.free.cpus >= cpus and one.free.memory >= memory
    ]
    return nodes[min(fitting)[3]].name if fitting else None


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    return [
        node(
            f"n{at}",
            busy=range(draw(st.integers(0, 8))),
            used_cpus=draw(st.integers(0, 24)),
            used_memory=draw(st.integers(0, 5)) * 100 * GIB,
        )
        for at in range(draw(st.integers(1, 6)))
    ]


@given(clusters(), st.integers(1, 8), st.integers(1, 24), st.integers(0, 300))
def test_the_vectors_choose_as_the_plain_rule_does(nodes: list[Node], gpus: int, cpus: int, gib: int) -> None:
    one = job(1, gpus, cpus, memory=max(gib, 1) * GIB)
    asked = situation(nodes, [one])
    ledger = FreeResources.of_snapshot(asked.snapshot)
    wishes = DemandCache(
        ledger.pools, Eligibility(ledger.pools, asked.snapshot, asked.open_nodes), asked.knowledge, AsRequested()
    )
    found = find_placement(wishes.of(one), DemandLevel.BEST, ledger, CONSOLIDATED)
    expected = plainly(nodes, gpus, cpus, max(gib, 1) * GIB)
    assert (found and ledger.pools.node(found.pools[0]).name) == expected


def gang(gpus: int, nodes: int = 1, most: int | None = None, **other: Any) -> Job:
    """A task for each GPU unless said otherwise."""
    other.setdefault("tasks", gpus)
    return job(1, request=Request(gpus=gpus, nodes=nodes, max_nodes=most, cpus=gpus, **other))


def busy(name: str, count: int) -> Node:
    return node(name, busy=range(count), used_cpus=3 * count, used_memory=count * 20 * GIB)


@pytest.mark.parametrize(
    ("taken", "one", "expected"),
    [
        pytest.param((0, 6), gang(2), {"b": 2}, id="the server that is just enough"),
        pytest.param((3, 3), gang(2), {"a": 2}, id="the first of equals"),
        pytest.param((6, 6), gang(4), None, id="one node asked for: never split"),
        pytest.param((6, 6), gang(4, 1, 2), {"a": 2, "b": 2}, id="two nodes allowed: split evenly"),
        pytest.param((4, 6), gang(4, 1, 2), {"a": 4}, id="the minimum of servers"),
        pytest.param((5, 7), gang(4, 1, 2), {"a": 3, "b": 1}, id="unevenly where it must be"),
        pytest.param((5, 7), gang(4, 1, 2, tasks=2), None, id="but never through a task"),
        pytest.param((5, 7, 6), gang(6, 1, 3), {"a": 3, "b": 1, "c": 2}, id="three nodes"),
        pytest.param((0, 1, 0), gang(16, 2, gpus_per_node=8), {"a": 8, "c": 8}, id="two full nodes"),
        pytest.param((0, 1), gang(16, 2, gpus_per_node=8), None, id="a gang is placed whole or not at all"),
        pytest.param((4, 0, 5), gang(4, 2), {"a": 2, "c": 2}, id="two nodes as full as can be"),
        pytest.param((4, 0), gang(1, pinned=frozenset("b")), {"b": 1}, id="a node that was named"),
        pytest.param((4, 5, 0), gang(4, 2, pinned=frozenset("c")), {"c": 2, "b": 2}, id="a named one and the best"),
        pytest.param((4, 5, 0), gang(1, pinned=frozenset({"gone"})), None, id="a named node that is not there"),
        pytest.param((4, 0), gang(1, excluded=frozenset("a")), {"b": 1}, id="not on an excluded node"),
        pytest.param((0, 1), gang(1, exclusive=True), {"a": 1}, id="a node for itself alone"),
        pytest.param((1, 1), gang(1, exclusive=True), None, id="no node is empty"),
    ],
)
def test_a_gang_lies_on_the_fewest_fullest_nodes_it_allows(
    taken: tuple[int, ...], one: Job, expected: dict[str, int] | None
) -> None:
    nodes = [busy(name, count) for name, count in zip("abc", taken, strict=False)]
    assert placed(situation(nodes, [one]), one) == expected


@pytest.mark.parametrize(
    ("other", "one", "expected"),
    [
        pytest.param(node("b", gpu_type="a100"), gang(1, gpu_type="a100"), {"b": 1}, id="the GPU type asked for"),
        pytest.param(node("b", gpu_type="a100"), gang(16, 1, 2), None, id="never two GPU types in a gang"),
        pytest.param(node("b", features=frozenset({"ib"})), gang(1, features="ib"), {"b": 1}, id="a feature"),
        pytest.param(node("b"), gang(1, features="[x|y]"), None, id="a constraint that cannot be read"),
        pytest.param(node("b", state=NodeState.DRAINED), gang(8), {"a": 8}, id="not on a drained node"),
        pytest.param(node("b", busy=[0], state=NodeState.DRAINED), gang(1), {"a": 1}, id="however well it would fit"),
    ],
)
def test_only_nodes_of_the_right_kind_count(other: Node, one: Job, expected: dict[str, int] | None) -> None:
    assert placed(situation([node("a"), other], [one]), one) == expected


def test_a_gang_on_nodes_of_two_kinds_gets_the_same_on_both() -> None:
    one = gang(16, 2, gpus_per_node=8)
    asked = situation([node("a", cpus=48), node("b", cpus=24)], [one])
    target = policy("proportional").decide(asked).targets["1"]
    assert [share.resources.cpus for share in target.allocations] == [24, 24]


def test_a_gang_lies_inside_one_partition() -> None:
    nodes = [node("a", partitions=frozenset({"x"})), node("b", partitions=frozenset({"y"}))]
    one = job(1, request=Request(gpus=16, nodes=2, gpus_per_node=8, tasks=2, cpus=2), partitions=("x", "y"))
    assert placed(situation(nodes, [one]), one) is None


def test_the_first_partition_with_room_counts() -> None:
    nodes = [node("a", partitions=frozenset({"x"})), node("b", partitions=frozenset({"y"}))]
    one = job(1, partitions=("y", "x"))
    assert placed(situation(nodes, [one]), one) == {"b": 1}


def test_a_job_with_a_reservation_lies_in_it_and_nowhere_else() -> None:
    held = Reservation("maintenance", frozenset({"b"}), 0, 1e9)
    one = job(1, reservation="maintenance")
    seen = snapshot([busy("a", 4), node("b")], [one], reservations=(held,))
    asked = situation([], [], seen=seen, open_nodes={"gpu": frozenset({"a"})})
    assert placed(asked, one) == {"b": 1}


def test_a_gpu_in_shards_is_not_free() -> None:
    shared = node("a", gpus=1, busy=[0])
    one = job(1)
    assert placed(situation([shared, node("b")], [one]), one) == {"b": 1}
